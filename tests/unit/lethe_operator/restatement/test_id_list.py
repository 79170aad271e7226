"""Batch ids by reference: read in time, carried out as they were first looked at, or not at all."""

import base64
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from lethe.contract.result import RequestResult
from lethe.kube import CONFIG_MAPS
from lethe.restatement.group import LISTED_IDS_AT_MOST, IdList, parse_ids
from lethe_operator.dataset.tables import asked_by
from lethe_operator.resources.observed import AttemptState, NotListed
from lethe_operator.resources.restatement import Restatement, Unmet
from lethe_operator.restatement import observe
from lethe_operator.restatement.observe import IdLists
from lethe_operator.restatement.queue import in_order

from tests.support.builders import NOW, a_batch, a_ledger, a_request_entry, ago
from tests.support.fake_cluster import Client, FakeCluster
from tests.support.resources import (
    a_dataset,
    a_group,
    a_replay,
    a_restatement,
    a_result,
    a_run,
    a_table,
    an_attempt,
    condition,
    message,
)
from tests.support.statuses import a_condition, a_restatement_status, showing
from tests.unit.lethe_operator.queueing import R, decided, ended, members, seen

URI = "s3://lake/ids.txt"
SHA = parse_ids(b"a\nb", "").sha256


def by_map(name: str = "m", key: str = "ids", of: str = "lists", **changes: Any) -> Restatement:
    return _by(name, {"configMapKeyRef": {"name": of, "key": key}}, changes)


def by_uri(name: str = "u", **changes: Any) -> Restatement:
    return _by(name, {"uri": URI}, changes)


def _by(name: str, source: dict[str, Any], changes: dict[str, Any]) -> Restatement:
    r = a_restatement(name, batchIdsFrom=source, **changes)
    return replace(r, spec=r.spec.model_copy(update={"batch_ids": ()}))


def listing(r: Restatement, *ids: str) -> Restatement:
    return replace(r, listed=parse_ids("\n".join(ids).encode(), ""))


# --- reading ConfigMaps --------------------------------------------------------------------------------------------------


@pytest.fixture
def client() -> Client:
    return Client(FakeCluster())


LABELS = {"lethe.dev/batch-ids": "true"}


def put(client: Client, name: str = "lists", labels: Any = LABELS, **changes: Any) -> None:
    """The ConfigMap as it is then."""
    client.server.objects.pop(("ConfigMap", "ns", name), None)
    client.server.create(CONFIG_MAPS, "ns", {"metadata": {"name": name, "labels": labels}, **changes})


def attached(client: Client, lists: IdLists, *restatements: Restatement, at: datetime = NOW) -> list[Restatement]:
    return list(lists.attached(client, "ns", "flights", restatements, at))  # type: ignore[arg-type]


def test_a_list_is_the_text_or_the_bytes_under_its_key(client: Client) -> None:
    put(client, data={"ids": "b\nä\n"}, binaryData={"packed": base64.b64encode(b"x\ny").decode()})
    inline = R[0]

    text, packed, other = attached(client, IdLists(), by_map("m1"), by_map("m2", "packed"), inline)

    assert (text.batch_ids, packed.batch_ids) == (("b", "ä"), ("x", "y"))
    assert (other, client.requests) == (inline, ["get ConfigMap"])


def test_what_is_not_there_is_looked_for_again_and_what_is_no_list_is_not(client: Client) -> None:
    put(client, data={"blank": " a"})

    no_key, no_map, no_list = (
        r.listed for r in attached(client, IdLists(), by_map("m1"), by_map("m2", of="nobody"), by_map("m3", "blank"))
    )

    assert isinstance(no_key, Unmet)
    assert isinstance(no_map, Unmet)
    assert isinstance(no_list, Unmet)
    assert [(n.reason, n.final) for n in (no_key, no_map, no_list)] == [
        ("ListNotFound", False),
        ("ListNotFound", False),
        ("InvalidIdList", True),
    ]
    assert "has no such key" in no_key.message
    assert "this namespace has no ConfigMap of that name" in no_map.message


@pytest.mark.parametrize("labels", [None, {}, {"lethe.dev/batch-ids": "false"}, {"lethe.dev/batch-idsx": "true"}])
def test_a_config_map_without_the_label_is_not_read(client: Client, labels: Any) -> None:
    """A user who may create Restatements is not always allowed to read ConfigMaps."""
    put(client, labels=labels, data={"ids": "the-database\npassword"})

    (found,) = (r.listed for r in attached(client, IdLists(), by_map()))

    assert isinstance(found, Unmet)
    assert (found.reason, found.final) == ("ListNotAllowed", False)
    assert "lethe.dev/batch-ids" in found.message
    assert "password" not in found.message


def test_it_is_read_again_after_a_while_and_one_that_was_not_there_sooner(client: Client) -> None:
    lists = IdLists()
    put(client, data={"ids": "a"})

    def read(seconds: float) -> list[Any]:
        at = NOW + timedelta(seconds=seconds)
        return [r.listed for r in attached(client, lists, by_map("m1"), by_map("m2", of="late"), at=at)]

    assert isinstance(read(0)[1], Unmet)
    put(client, data={"ids": "b"})
    put(client, "late", data={"ids": "c"})
    assert [getattr(found, "ids", ()) for found in read(14)] == [("a",), ()]
    assert [found.ids for found in read(15)] == [("a",), ("c",)]
    assert [found.ids for found in read(60)] == [("b",), ("c",)]
    assert client.requests == ["get ConfigMap"] * 4


def test_what_has_ended_is_not_read_and_what_is_not_asked_for_is_forgotten(client: Client) -> None:
    lists = IdLists()
    put(client, data={"ids": "a"})
    done = by_map(status=a_restatement_status(a_condition()))

    assert attached(client, lists, done) == [done]
    assert client.requests == []
    attached(client, lists, by_map())
    attached(client, lists)
    attached(client, lists, by_map())
    assert client.requests == ["get ConfigMap"] * 2


def test_so_many_are_read_at_one_look_and_held_the_oldest_first(
    client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those behind wait, and say what for."""
    monkeypatch.setattr(observe, "READS_AT_ONCE", 2)
    monkeypatch.setattr(observe, "IDS_HELD_AT_MOST", 3)
    lists = IdLists()
    for n in range(4):
        put(client, f"l{n}", data={"ids": f"{n}a\n{n}b"})
    age = [{"creationTimestamp": ago(hours=n).isoformat()} for n in range(4)]
    waiting = [by_map(f"m{n}", of=f"l{n}", meta=age[n]) for n in range(4)]

    def read() -> dict[str, bool]:
        return {r.meta.name: isinstance(r.listed, IdList) for r in attached(client, lists, *waiting)}

    assert read() == {"m3": True, "m2": True, "m1": False, "m0": False}
    assert read() == {"m3": True, "m2": True, "m1": False, "m0": False}  # so many ids are enough
    del waiting[2:]
    assert read() == {"m1": True, "m0": True}


# --- what is decided -----------------------------------------------------------------------------------------------------


def test_the_ids_of_a_config_map_go_into_the_runs_document_with_the_digest() -> None:
    r = listing(by_map(), "a", "b")

    actions = decided(r)

    (launch,) = actions.launches
    assert launch.run.restatement is not None
    (request,) = launch.run.restatement.requests
    assert (request.batch_ids, request.batch_ids_uri, request.batch_ids_sha256) == (("a", "b"), "", SHA)
    assert actions.restatement_statuses["m"]["plan"] == {"batchIds": {"count": 2, "sha256": SHA}}
    assert "Revert of 2 batches" in launch.why


def test_a_file_is_left_to_the_run_which_tells_what_it_has_read() -> None:
    first = decided(by_uri())
    (launch,) = first.launches
    assert launch.run.restatement is not None
    (request,) = launch.run.restatement.requests
    told = RequestResult(
        key=by_uri().key,
        name="ns/u",
        succeeded=False,
        again=True,
        reason="ReplacementNotFound",
        message="Wait.",
        batch_ids_count=2,
        batch_ids_sha256=SHA,
    )
    run = ended(300, by_uri(), result=a_result(a_group(by_uri()), requests=[told]))

    again = decided(by_uri(), runs=(run,))
    known = seen(again, [by_uri()])
    (second,) = decided(*known, runs=(run,)).launches

    assert (request.batch_ids, request.batch_ids_uri, request.batch_ids_sha256) == ((), URI, "")
    assert "plan" not in first.restatement_statuses["u"]
    assert f"Revert of the batches in {URI}" in launch.why
    assert again.restatement_statuses["u"]["plan"] == {"batchIds": {"count": 2, "sha256": SHA}}
    assert second.run.restatement is not None
    assert second.run.restatement.requests[0].batch_ids_sha256 == SHA
    assert (by_uri().batches, known[0].batches) == (LISTED_IDS_AT_MOST, 2)


def test_the_values_of_an_erase_at_a_uri_are_left_to_the_run_which_tells_their_keyed_digest() -> None:
    rows = {"column": "c", "valuesFrom": {"uri": URI}}
    erase = a_restatement("u", operation="Erase", batchIds=(), rows=rows)
    (launch,) = decided(erase).launches
    told = RequestResult(
        key=erase.key,
        name="ns/u",
        succeeded=False,
        again=True,
        reason="TableNotFound",
        message="Wait.",
        values_digest="1:2",
    )
    run = ended(300, erase, result=a_result(a_group(erase), requests=[told]))

    known = seen(decided(erase, runs=(run,)), [erase])
    (second,) = decided(*known, runs=(run,)).launches

    digests = [x.run.restatement.requests[0].rows.values_digest for x in (launch, second)]  # type: ignore[union-attr]
    assert known[0].status.plan is not None
    assert (digests, known[0].status.plan.values_digest) == (["", "1:2"], "1:2")
    assert (launch.secrets, launch.run.erases_by_values) == ((), True)


@pytest.mark.parametrize("known_by", ["status", "run"])
def test_a_list_that_has_changed_is_refused_whoever_remembers_it(known_by: str) -> None:
    """An operator that dies after the start of a run may not have written the status."""
    before = listing(by_map(), "a", "b")
    failed = ended(300, before, state=AttemptState.FAILED, exit_code=None)
    status = seen(decided(before), [before])[0].status if known_by == "status" else {}

    changed = showing(listing(by_map(), "a", "c"), status)
    actions = decided(changed, runs=(failed,) if known_by == "run" else ())

    told = actions.restatement_statuses["m"]
    assert (told["phase"], condition(told, "Succeeded")) == ("Failed", ("False", "ListChanged"))
    assert actions.launches == ()
    if known_by == "status":
        assert told["plan"] == {"batchIds": {"count": 2, "sha256": SHA}}
    unchanged = showing(listing(by_map(), "a", "b"), status)
    assert members(decided(unchanged, runs=(failed,) if known_by == "run" else ())) == ["m"]


def test_one_that_was_created_anew_may_have_another_list() -> None:
    failed = ended(300, listing(by_map(), "a"), state=AttemptState.FAILED, exit_code=None)
    anew = by_map(meta={"uid": "another", "creationTimestamp": ago(seconds=400).isoformat()})

    assert members(decided(listing(anew, "b"), runs=(failed,))) == ["m"]


def test_a_run_under_way_is_not_judged_by_what_the_list_is_now() -> None:
    before = listing(by_map(), "a")
    spec = a_group(before)
    run = a_run(spec, an_attempt(spec, for_uid=before.meta.uid))

    assert condition(decided(listing(by_map(), "b"), runs=(run,)).restatement_statuses["m"], "Ready")[1] == "Running"


def test_one_without_a_list_waits_for_it_and_nobody_waits_for_that() -> None:
    missing = replace(by_map(), listed=Unmet("ListNotFound", "There is none.", again_seconds=15))

    actions = decided(missing, R[1])

    status = actions.restatement_statuses["m"]
    assert (status["phase"], condition(status, "Succeeded")) == ("Pending", ("Unknown", "ListNotFound"))
    assert condition(status, "Stalled")[0] == "False"
    assert actions.look_again == NOW + timedelta(seconds=15)
    assert members(actions) == ["r1"]


def test_one_whose_list_is_none_fails_with_the_line() -> None:
    broken = replace(by_map(), listed=Unmet("InvalidIdList", "Line 3.", final=True))

    status = decided(broken).restatement_statuses["m"]

    assert (condition(status, "Succeeded"), message(status, "Ready")) == (("False", "InvalidIdList"), "Line 3.")


def test_what_the_ledger_keeps_of_a_list_is_told_again() -> None:
    r = by_uri()
    entry = a_request_entry(r.key, batch_ids=("a", "b"), batch_ids_count=2, batch_ids_sha256=SHA)

    status = decided(r, world={"table": a_table(a_ledger(requests=[entry]))}).restatement_statuses["u"]

    assert status["phase"] == "Succeeded"
    assert (status["plan"]["batches"], status["plan"]["batchIds"]) == (2, {"count": 2, "sha256": SHA})


# --- the queue -----------------------------------------------------------------------------------------------------------


def test_listed_ids_count_for_the_order_and_a_file_goes_by_its_age() -> None:
    """Whoever goes before what makes its batches keeps these out for good: nobody ever sees them."""
    makes = a_replay("A", "B", "z-makes")
    needs = listing(by_map("needs", meta={"creationTimestamp": ago(hours=5).isoformat()}), "B")
    blind = by_uri("blind", meta={"creationTimestamp": ago(hours=5).isoformat()})

    assert [r.meta.name for r in in_order([needs, makes])] == ["z-makes", "needs"]
    assert [r.meta.name for r in in_order([blind, makes])] == ["blind", "z-makes"]


def test_what_a_suspended_one_makes_is_waited_for_by_a_list_that_names_it() -> None:
    makes, needs = a_replay("A", "B", "a", suspend=True), listing(by_map("needs"), "B")

    actions = decided(makes, needs)

    assert condition(actions.restatement_statuses["needs"], "Ready")[1] == "WaitingForRestatement"


def test_a_file_that_nobody_has_read_takes_the_room_of_a_full_list() -> None:
    waiting = [by_uri(f"u{n}") for n in range(3)]

    assert members(decided(*waiting)) == ["u0", "u1"]


def test_a_replay_by_a_file_reads_at_most_what_is_in_the_table() -> None:
    replacement = {"batchId": "N", "uri": "s3://lake/restated/N/"}
    blind = by_uri("u", operation="Replay", replacement=replacement)
    listed = listing(by_map("m", operation="Replay", replacement=replacement), "A", "X")
    ledger = a_ledger(batches=[a_batch("A", bytes=500)])
    world = {"table": a_table(ledger, total_bytes=9000)}

    assert [launch.bytes for launch in decided(blind, world=dict(world)).launches] == [9000]
    assert [launch.bytes for launch in decided(listed, world=dict(world)).launches] == [500]
    assert asked_by(a_dataset(), [listed], (), NotListed()).batch_ids == {"A", "X"}


def test_the_size_of_a_long_list_is_judged_by_some_of_its_batches() -> None:
    """The operator asks the ledger at each look; each lookup costs."""
    ids = [f"b{n}" for n in range(3000)]
    replacement = {"batchId": "N", "uri": "s3://lake/restated/N/"}
    r = listing(by_map("m", operation="Replay", replacement=replacement), *ids)
    ledger = a_ledger(batches=[a_batch(i, bytes=10) for i in ids[:1000]])

    assert asked_by(a_dataset(), [r], (), NotListed()).batch_ids == set(ids[:1000])
    assert decided(r, world={"table": a_table(ledger)}).launches[0].bytes == 30_000
