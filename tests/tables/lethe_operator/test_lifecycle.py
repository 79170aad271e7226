"""Restatements that are cancelled, listed by reference or only planned, through the whole of an operator that may die or be
told something at any of its requests."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from lethe.kube import CONFIG_MAPS, JOBS, RESTATEMENTS
from lethe.restatement.group import LISTED_IDS_AT_MOST, parse_ids

from tests.support.fake_cluster import Client
from tests.support.resources import condition
from tests.support.small_lake import FLIGHTS, SmallLake
from tests.support.steps import Killed

Begin = Callable[[], SmallLake]
BY_MAP = {"batchIdsFrom": {"configMapKeyRef": {"name": "lists", "key": "ids"}}}


def requests_of(lake: SmallLake) -> list[str]:
    """What one reconcile asks of the API server."""
    client = Client(lake.cluster)
    lake.operator(client)(FLIGHTS)
    return client.requests


def end_all(lake: SmallLake) -> None:
    for job in lake.jobs():
        if not (job.get("status") or {}).get("conditions"):
            lake.end(job)


def settle(lake: SmallLake) -> None:
    """Operators that each remember nothing, and the runs that they start, until each Restatement has ended."""
    for _ in range(9):
        lake.operator()(FLIGHTS)
        if all(phase in ("Succeeded", "Failed", "Cancelled") for phase in lake.phases().values()):
            return
        end_all(lake)
    raise AssertionError(lake.phases())


def status(lake: SmallLake, name: str) -> dict[str, Any]:
    return dict(lake.cluster.get(RESTATEMENTS, "ns", name)["status"])


def carried_out(lake: SmallLake) -> set[str]:
    return {entry.key.split("/")[1] for entry in lake.ledger.requests.values()}


def put_list(lake: SmallLake, *ids: str) -> None:
    lake.cluster.delete(CONFIG_MAPS, "ns", "lists")
    metadata = {"name": "lists", "labels": {"lethe.dev/batch-ids": "true"}}
    lake.cluster.create(CONFIG_MAPS, "ns", {"metadata": metadata, "data": {"ids": "\n".join(ids)}})


def moments(begin: Begin, prepare: Callable[[SmallLake], object]) -> Iterator[tuple[SmallLake, int]]:
    """A lake for each request of a reconcile, which is yet to be made."""
    whole = begin()
    prepare(whole)
    for n, _ in enumerate(requests_of(whole)):
        lake = begin()
        prepare(lake)
        yield lake, n


@pytest.mark.parametrize("together", [("a", "b"), ("a",)])
def test_a_cancel_that_comes_at_any_moment_of_a_launch_is_told_what_the_ledger_says(
    begin: Begin, together: tuple[str, ...]
) -> None:
    """Before it starts, while it runs with others or alone, and after its commit."""
    ends = set()
    for lake, n in moments(begin, lambda lake: lake.ask(*together)):

        def cancel(lake: SmallLake = lake) -> None:
            body = lake.cluster.get(RESTATEMENTS, "ns", "a")
            generation = body["metadata"]["generation"] + 1
            change = {"metadata": {"generation": generation}, "spec": {"cancel": True}}
            lake.cluster.patch(RESTATEMENTS, "ns", "a", change)

        lake.operator(Client(lake.cluster, before={n: cancel}))(FLIGHTS)
        settle(lake)

        done, phases = carried_out(lake), lake.phases()
        assert phases["a"] == ("Succeeded" if "a" in done else "Cancelled"), n
        if "b" in together:
            assert phases["b"] == "Succeeded", n
        if "a" in done:
            assert "came too late" in str(status(lake, "a")["conditions"]), n
        ends.add(phases["a"])
    assert ends == ({"Succeeded", "Cancelled"} if "b" in together else {"Cancelled"})


def test_a_cancel_of_both_members_stops_their_run(begin: Begin) -> None:
    lake = begin()
    lake.ask("a", "b")
    lake.operator()(FLIGHTS)
    for name in ("a", "b"):
        lake.cluster.patch(RESTATEMENTS, "ns", name, {"metadata": {"generation": 2}, "spec": {"cancel": True}})

    lake.operator()(FLIGHTS)
    jobs = lake.jobs()
    lake.operator()(FLIGHTS)

    assert (jobs, lake.phases(), carried_out(lake)) == ([], {"a": "Cancelled", "b": "Cancelled"}, set())


def test_as_many_ids_as_a_list_may_have_reach_the_run_and_the_status_stays_small(begin: Begin) -> None:
    lake, ids = begin(), [f"2013-01-{n:06}.航班" for n in range(LISTED_IDS_AT_MOST)]
    lake.ask("a", batchIds=[], **BY_MAP)
    lake.operator()(FLIGHTS)
    assert condition(status(lake, "a"), "Ready") == ("False", "ListNotFound")

    put_list(lake, *ids)
    lake.operator()(FLIGHTS)
    (run,) = lake.runs()
    settle(lake)

    assert run.restatement is not None
    (request,) = run.restatement.requests
    assert request.batch_ids == tuple(ids)
    found = status(lake, "a")
    digest = parse_ids("\n".join(ids).encode(), "").sha256
    assert (found["phase"], found["plan"]["batchIds"]) == ("Succeeded", {"count": LISTED_IDS_AT_MOST, "sha256": digest})
    assert len(str(found)) < 4000


def test_a_list_that_changes_when_the_operator_dies_is_carried_out_as_it_was_first_looked_at_or_not_at_all(
    begin: Begin,
) -> None:
    def prepare(lake: SmallLake) -> None:
        lake.ask("a", batchIds=[], **BY_MAP)
        put_list(lake, "x", "y")

    ends = set()
    for lake, n in moments(begin, prepare):

        def die() -> None:
            raise Killed

        with pytest.raises(Killed):
            lake.operator(Client(lake.cluster, after={n: die}))(FLIGHTS)
        started = bool(lake.jobs())
        put_list(lake, "x", "z")
        stored = {q.batch_ids for r in lake.runs() if r.restatement for q in r.restatement.requests}
        settle(lake)

        told = status(lake, "a")
        if started:
            assert (told["phase"], stored) == ("Succeeded", {("x", "y")}), n
        ends.add(told["phase"])
        ran = {q.batch_ids for r in lake.runs() if r.restatement for q in r.restatement.requests}
        if told["phase"] == "Succeeded":
            digest = told["plan"]["batchIds"]["sha256"]
            assert {parse_ids("\n".join(ids).encode(), "").sha256 for ids in ran} <= {digest}, n
    assert ends == {"Succeeded", "Failed"}


def test_a_dry_run_is_told_and_forgotten_and_the_table_has_never_heard_of_it(begin: Begin) -> None:
    lake = begin()
    lake.ask("dry", dryRun=True)
    lake.ask("real")
    before = lake.table.current_snapshot()

    lake.operator()(FLIGHTS)
    (first,) = lake.jobs()
    lake.end(first)
    planned = carried_out(lake)
    settle(lake)

    found = status(lake, "dry")
    assert (before, planned, carried_out(lake)) == (None, set(), {"real"})
    assert (condition(found, "Succeeded"), found["plan"]["files"]) == (("True", "Planned"), 2)
    lake.cluster.delete(JOBS, "ns", first["metadata"]["name"])
    lake.operator()(FLIGHTS)
    assert status(lake, "dry") == found


def test_an_operator_that_dies_while_it_tells_of_a_dry_run_leaves_that_to_its_successor(begin: Begin) -> None:
    def prepare(lake: SmallLake) -> None:
        lake.ask("dry", dryRun=True)
        lake.operator()(FLIGHTS)
        end_all(lake)

    for lake, n in moments(begin, prepare):

        def die() -> None:
            raise Killed

        with pytest.raises(Killed):
            lake.operator(Client(lake.cluster, after={n: die}))(FLIGHTS)
        settle(lake)

        assert condition(status(lake, "dry"), "Succeeded") == ("True", "Planned"), n
        assert len(lake.jobs()) == 1, n
