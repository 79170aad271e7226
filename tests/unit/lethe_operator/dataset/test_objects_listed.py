"""Listings of the objects of Kubernetes: what a watch has lost is found, what is newer than a page stays, and a write without an
answer is looked up."""

import math
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import pytest
from lethe.kube import DATASETS, JOBS, RESTATEMENTS, Away, RequestRefused, ResourceKind
from lethe_operator.cluster.cache import READ_ONE_BY_ONE
from lethe_operator.cluster.schedule import Key
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.dataset.observe import Sources, observe
from lethe_operator.dataset.tables import TableReader
from lethe_operator.handlers import AFTER_LISTING_SECONDS, Relists, keys_of
from lethe_operator.probes import OperatorHealth
from lethe_operator.restatement.observe import IdLists
from lethe_operator.settings import Settings

from tests.support.builders import NOW
from tests.support.clock import ManualClock
from tests.support.fake_cluster import Client, FakeCluster, watched
from tests.support.resources import a_dataset_body, a_restatement_body
from tests.unit.lethe_operator.dataset.known_objects import MANAGED, a_body

# --- listings ----------------------------------------------------------------------------------------------------------


def a_server(count: int) -> FakeCluster:
    return FakeCluster(*((DATASETS, a_dataset_body(f"d{n:03}", meta={"resourceVersion": "1"})) for n in range(count)))


@dataclass
class Finds:
    """What a relist finds that no watch has reported."""

    open: dict[str, str] = field(default_factory=dict)
    changed: list[str] = field(default_factory=list)  # what the operator must look at

    def found(self, uid: str, version: str) -> None:
        self.open[uid] = version

    def watched(self, uid: str, version: str) -> None:
        assert self.open.pop(uid, version) == version


def test_a_namespace_is_listed_once_although_several_ask_at_once() -> None:
    client, objects = Client(a_server(2)), WatchedObjects()
    asked = threading.Event()
    client.before = {0: lambda: asked.wait(10)}
    with ThreadPoolExecutor(2) as pool:
        both = [pool.submit(objects.ensure, client, "ns") for _ in range(2)]  # type: ignore[arg-type]
        asked.set()
        for one in both:
            one.result()

    assert len(objects.datasets("ns")) == 2
    assert client.requests.count("page Dataset") == 1
    assert objects.is_synced(["ns"])
    assert not objects.is_synced(["ns", "other"])


def test_a_listing_that_fails_is_repeated() -> None:
    def fail() -> None:
        raise Away(0, "NoAnswer", "GET")

    client, objects = Client(a_server(1), before={3: fail}), WatchedObjects()
    with pytest.raises(Away):
        objects.ensure(client, "ns")  # type: ignore[arg-type]

    assert not objects.is_synced(["ns"])
    objects.ensure(client, "ns")  # type: ignore[arg-type]
    assert objects.is_synced(["ns"])


def test_an_event_that_comes_while_a_page_is_read_is_newer_than_the_page() -> None:
    server, objects = a_server(3), WatchedObjects()
    server.watchers.append(objects)

    def change() -> None:
        server.patch(DATASETS, "ns", "d000", {"spec": {"batchColumn": "edited"}})
        server.delete(DATASETS, "ns", "d001")
        server.create(DATASETS, "ns", a_dataset_body("new", meta={"resourceVersion": "99"}))

    objects.ensure(Client(server, after={0: change}), "ns")  # type: ignore[arg-type]

    found = {d.meta.name: d.spec.batch_column for d in objects.datasets("ns")}
    assert found == {"d000": "edited", "d002": "batch_id", "new": "batch_id"}


def behind(server: FakeCluster, kind: ResourceKind = DATASETS) -> tuple[WatchedObjects, Finds]:
    """A store whose watch of a kind has stopped."""
    objects, finds = watched(server), Finds()
    objects.finds = finds
    objects.on_change = lambda _, body: finds.changed.append(body["metadata"]["name"])
    server.held_back.add(kind)
    return objects, finds


def test_a_relist_finds_what_the_watch_has_lost_and_reads_only_that() -> None:
    server = a_server(40)
    objects, finds = behind(server)
    server.patch(DATASETS, "ns", "d003", {"spec": {"batchColumn": "edited"}})
    server.delete(DATASETS, "ns", "d004")
    server.create(DATASETS, "ns", a_dataset_body("new", meta={"resourceVersion": "99"}))
    client = Client(server)

    objects.catch_up(client, ["ns"], [DATASETS])  # type: ignore[arg-type]

    assert client.requests == ["page Dataset", "get Dataset", "get Dataset"]
    found = {d.meta.name: d.spec.batch_column for d in objects.datasets("ns")}
    assert (len(found), found["d003"], "d004" in found, "new" in found) == (40, "edited", False, True)
    assert set(finds.open) == {"uid-d003", "uid-new"}
    assert sorted(finds.changed) == ["d003", "d004", "new"]


def test_a_page_of_which_much_has_changed_is_read_in_one_request() -> None:
    server = a_server(40)
    objects, finds = behind(server)
    for n in range(READ_ONE_BY_ONE + 1):
        server.patch(DATASETS, "ns", f"d{n:03}", {"spec": {"batchColumn": "edited"}})
    client = Client(server)

    objects.catch_up(client, ["ns"], [DATASETS])  # type: ignore[arg-type]

    assert client.requests == ["page Dataset", "page Dataset"]
    assert (
        [d.spec.batch_column for d in objects.datasets("ns")].count("edited") == len(finds.open) == READ_ONE_BY_ONE + 1
    )


def test_a_change_that_the_watch_reports_during_the_relist_is_no_sign_of_a_dead_watch() -> None:
    server = a_server(2)
    objects, finds = behind(server)
    server.patch(DATASETS, "ns", "d000", {"spec": {"batchColumn": "edited"}})
    # Between the page of metadata and the read of the object.
    client = Client(server, before={1: lambda: server.release(DATASETS)})

    objects.catch_up(client, ["ns"], [DATASETS])  # type: ignore[arg-type]

    assert (finds.open, finds.changed) == ({}, [])


def test_a_job_or_a_restatement_that_a_relist_does_not_find_concerns_its_dataset() -> None:
    job = a_body("j", 3, labels={"lethe.dev/dataset-uid": "u"}, meta={"annotations": {"lethe.dev/dataset": "flights"}})
    job["metadata"]["labels"] = MANAGED
    server = FakeCluster((JOBS, job), (RESTATEMENTS, a_restatement_body("r", datasetRef={"name": "trains"})))
    objects, _ = behind(server, JOBS)
    server.held_back.add(RESTATEMENTS)
    keys: list[Key] = []
    objects.on_change = lambda kind, body: keys.extend(keys_of(kind, body))
    server.delete(JOBS, "ns", "j")
    server.delete(RESTATEMENTS, "ns", "r")

    objects.catch_up(server, ["ns"], [JOBS, RESTATEMENTS])  # type: ignore[arg-type]

    assert keys == [Key("Dataset", "ns", "flights"), Key("Dataset", "ns", "trains")]


def test_an_object_of_the_operators_own_that_a_page_is_too_old_to_show_stays() -> None:
    server = a_server(1)
    objects, _ = behind(server)

    def create() -> None:
        objects.written(DATASETS, server.create(DATASETS, "ns", a_dataset_body("own", meta={"resourceVersion": "99"})))

    objects.catch_up(Client(server, after={0: create}), ["ns"], [DATASETS])  # type: ignore[arg-type]

    assert [d.meta.name for d in objects.datasets("ns")] == ["d000", "own"]


def test_a_watch_that_lists_again_causes_a_relist_of_its_kind_because_it_does_not_report_deletions() -> None:
    server, clock = a_server(2), ManualClock()
    objects, _ = behind(server)
    health = OperatorHealth(clock, 600)
    client = Client(server)
    monotonic = ManualClock(1000.0)
    relists = Relists(objects, client, ["ns"], health, clock=monotonic)  # type: ignore[arg-type]
    objects.clock = monotonic
    relists.step()
    server.delete(DATASETS, "ns", "d001")
    client.requests.clear()

    objects.record_event(DATASETS, None, server.get(DATASETS, "ns", "d000"))
    relists.step()
    assert client.requests == []  # it may still be listing
    monotonic.now += AFTER_LISTING_SECONDS + 1
    relists.step()
    relists.step()

    assert client.requests == ["page Dataset"]
    assert [d.meta.name for d in objects.datasets("ns")] == ["d000"]


def test_everything_is_listed_again_after_an_error_and_when_its_time_has_come() -> None:
    server, clock = a_server(1), ManualClock()
    objects, client = watched(server), Client(server)
    relists = Relists(objects, client, ["ns"], OperatorHealth(clock, 600), clock=clock, seconds=600)  # type: ignore[arg-type]

    def listings() -> int:
        client.requests.clear()
        relists.step()
        return client.requests.count("page Dataset")

    assert listings() == 1
    clock.now += 500
    assert listings() == 0
    clock.now += 161  # with the jitter
    assert listings() == 1
    clock.now += 661

    def fail() -> None:
        raise Away(0, "NoAnswer", "GET")

    client.before = {0: fail}
    with pytest.raises(Away):
        listings()
    client.before = {}
    assert listings() == 1


# --- namespaces in which the operator may not read -----------------------------------------------------------------------


@dataclass
class PartlyForbidden:
    """Refuses to show a namespace."""

    server: FakeCluster
    forbidden: str = "theirs"

    def __getattr__(self, name: str) -> Any:
        real = getattr(self.server, name)

        def request(kind: ResourceKind, namespace: str, *arguments: Any, **options: Any) -> Any:
            if namespace == self.forbidden:
                raise RequestRefused(403, "Forbidden", f"GET {kind.plural}")
            return real(kind, namespace, *arguments, **options)

        return request


def two_namespaces() -> PartlyForbidden:
    of = {name: a_dataset_body(name, meta={"namespace": name, "uid": name}) for name in ("ours", "theirs")}
    return PartlyForbidden(FakeCluster(*((DATASETS, body) for body in of.values())))


BOTH = ["theirs", "ours"]


def test_a_new_leader_takes_over_where_it_may_read() -> None:
    client, objects = two_namespaces(), WatchedObjects()

    assert set(objects.take_over(client, BOTH)) == {"theirs"}  # type: ignore[arg-type]
    assert [d.meta.name for n in BOTH for d in objects.datasets(n)] == ["ours"]
    assert objects.permitted(BOTH) == ["ours"]

    client.forbidden = ""
    assert not objects.take_over(client, ["theirs"])  # type: ignore[arg-type]
    assert objects.permitted(BOTH) == BOTH
    assert objects.is_synced(BOTH)


def test_the_other_namespaces_are_listed_again_and_the_process_stays_alive() -> None:
    client, objects, clock = two_namespaces(), WatchedObjects(), ManualClock()
    health = OperatorHealth(clock, 600)
    relists = Relists(objects, client, BOTH, health, clock=clock, seconds=600)  # type: ignore[arg-type]
    for _ in range(2):
        relists.step()
        clock.now += 661

    assert health.trouble(0.0, -math.inf) is None
    client.server.delete(DATASETS, "ours", "ours")
    relists.step()
    assert not objects.datasets("ours")

    clock.now += 661
    client.forbidden = ""
    relists.step()
    assert [d.meta.name for d in objects.datasets("theirs")] == ["theirs"]


def test_a_dataset_is_observed_although_another_namespace_refuses() -> None:
    """Datasets of all namespaces are compared, so all are read first."""
    client, objects = two_namespaces(), WatchedObjects()
    settings = Settings(watch_namespaces=("ours", "theirs"))
    sources = Sources(client, objects, TableReader(), IdLists(), settings)  # type: ignore[arg-type]

    assert not observe(sources, "ours", "new", NOW).invalid
    assert [d.meta.name for d in objects.datasets("ours")] == ["ours"]
    with pytest.raises(RequestRefused):
        observe(sources, "theirs", "new", NOW)


def test_another_refusal_or_no_answer_is_an_error() -> None:
    """It concerns all namespaces, or nothing is known of them."""
    objects = WatchedObjects()
    for error in (RequestRefused(401, "Unauthorized", "GET"), Away(0, "NoAnswer", "GET")):

        def fail(error: Exception = error) -> None:
            raise error

        client = Client(a_server(1), before={0: fail})
        with pytest.raises(type(error)):
            objects.ensure_each(client, ["ns"])  # type: ignore[arg-type]
        client = Client(a_server(1), before={0: fail})
        with pytest.raises(type(error)):
            objects.take_over(client, ["ns"])  # type: ignore[arg-type]
    assert objects.permitted(["ns"]) == ["ns"]


# --- writes without an answer ------------------------------------------------------------------------------------------


def test_a_write_without_an_answer_is_looked_up_before_the_next_decision() -> None:
    """Otherwise the operator could start another run beside the Job that it did create."""
    server = a_server(1)
    objects, _ = behind(server, JOBS)
    server.create(JOBS, "ns", a_body("made", 0, labels={"lethe.dev/dataset-uid": "u"}))
    objects.unanswered(JOBS, "ns", "made")
    objects.unanswered(JOBS, "ns", "not-made")
    client = Client(server)

    objects.ensure(client, "ns")  # type: ignore[arg-type]
    objects.ensure(client, "ns")  # type: ignore[arg-type]

    assert [j.name for j in objects.launchers_of("ns", "u")] == ["made"]
    assert client.requests == ["get Job", "get Job"]


def test_a_write_stays_doubtful_until_it_could_be_looked_up() -> None:
    def fail() -> None:
        raise Away(0, "NoAnswer", "GET")

    server = a_server(1)
    objects, _ = behind(server, JOBS)
    objects.unanswered(JOBS, "ns", "made")
    # The second write is lost while the first one is being looked up.
    client = Client(server, before={0: fail, 1: lambda: objects.unanswered(JOBS, "ns", "made")})

    with pytest.raises(Away):
        objects.ensure(client, "ns")  # type: ignore[arg-type]
    for _ in range(3):
        objects.ensure(client, "ns")  # type: ignore[arg-type]

    assert client.requests == ["get Job"] * 3
