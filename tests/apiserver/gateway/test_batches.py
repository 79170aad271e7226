"""Batches and erasures of a real table, by a real gateway with a real API server."""

import httpx
import pytest

from tests.support.gateway_lake import REFUSAL, STATES
from tests.support.gateway_site import Site

BATCHES = "/v1/namespaces/default/datasets/flights/batches"


def states(answer: httpx.Response) -> dict[str, str]:
    assert answer.status_code == 200, answer.text
    return {b["id"]: b["state"] for b in answer.json()["items"]}


def test_every_batch_is_listed_with_its_state(analyst: httpx.Client) -> None:
    answer = analyst.get(BATCHES)

    assert states(answer) == STATES
    assert "nextCursor" not in answer.json()


def test_an_answer_states_which_version_of_the_table_it_shows(analyst: httpx.Client) -> None:
    freshness = analyst.get(BATCHES).json()["freshness"]

    assert (freshness["ledgerVersion"], freshness["headLedgerVersion"], freshness["commitsBehind"]) == (6, 6, 0)
    assert {"readTime", "snapshotId", "listedTime"} <= freshness.keys()


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ({"state": ["reverted", "refused"]}, {"B", "late", "E"}),
        ({"idPrefix": "la"}, {"late"}),
        ({"idPrefix": "la", "state": "promoted"}, set()),
        ({"restatement": "revert-b"}, {"B", "late"}),
        ({"restatement": "default/replay-c"}, {"C"}),
        ({"restatement": "revert-b", "state": "promoted"}, set()),
        ({"restatement": "elsewhere/revert-b"}, set()),
        ({"since": "2026-03-01T12:00:00Z"}, {"B", "C", "D", "E", "late"}),
        ({"until": "2026-03-01T11:00:00Z"}, {"G"}),
        ({"since": "2026-03-01T11:56:00+01:00", "until": "2026-03-01T12:00:00Z"}, {"A", "F", "G"}),
    ],
)
def test_filters(analyst: httpx.Client, asked: dict[str, str], expected: set[str]) -> None:
    assert states(analyst.get(BATCHES, params=asked)).keys() == expected


def test_the_history_of_a_reverted_and_purged_batch(site: Site, analyst: httpx.Client) -> None:
    found = analyst.get(f"{BATCHES}/B").json()

    assert [e["type"] for e in found["history"]] == ["Promoted", "Reverted", "Purged"]
    promoted, reverted, purged = found["history"]
    site.table.refresh()
    times = {s.snapshot_id: s.timestamp_ms for s in site.table.snapshots()}
    assert promoted["snapshotId"] == site.table.snapshots()[1].snapshot_id
    assert purged["snapshotId"] in times
    text = str(purged["snapshotId"])
    same = {"time": purged["time"], "snapshotId": purged["snapshotId"], "snapshotIdText": text}
    assert found["purge"] == {"state": "Done", **same}
    by = {
        "namespace": "default",
        "name": "revert-b",
        "operation": "Revert",
        "reason": "the producer sent B twice",
        "ticket": "LAKE-7",
        "requestedBy": "ana",
    }
    assert reverted["restatement"] == by == found["restatedBy"]


def test_the_history_of_other_batches(analyst: httpx.Client) -> None:
    found = {id: analyst.get(f"{BATCHES}/{id}").json() for id in STATES}

    assert {id: [e["type"] for e in f["history"]] for id, f in found.items()} == {
        "A": ["Promoted"],
        "B": ["Promoted", "Reverted", "Purged"],
        "C": ["Promoted", "Replaced"],
        "D": ["Promoted", "Erased"],
        "E": ["Refused"],
        "F": ["Buffered"],
        "G": ["Promoted"],
        "late": ["Reverted"],
    }
    assert found["C"]["history"][1]["replacedBy"] == "G"
    assert found["C"]["purge"]["state"] == "Pending"
    assert found["E"]["history"][0]["message"] == REFUSAL.message
    assert (found["E"]["refusalReason"], found["late"]["purge"]["state"]) == (REFUSAL.reason, "None")
    erasure = found["D"]["erasure"]
    assert (erasure["state"], erasure["blockedBy"]) == ("Blocked", ["tag q1 (tag of the first quarter)"])


def test_open_erasures_are_listed(analyst: httpx.Client) -> None:
    (found,) = analyst.get("/v1/namespaces/default/datasets/flights/erasures").json()["items"]

    assert (found["restatement"], found["state"], found["dueTime"]) == ("erase-d", "Blocked", "2026-03-04T12:00:00Z")
    one = analyst.get("/v1/namespaces/default/datasets/flights/erasures/erase-d").json()["items"]
    assert one == [{"erasure": found, "found": False}]


@pytest.mark.parametrize(
    "id", ["..%2F..%2Fetc%2Fpasswd", "%2E%2E", "a%00b", "'%20OR%201=1--", "%F0%9F%98%80", "x" * 256]
)
def test_an_id_is_only_ever_an_id(analyst: httpx.Client, id: str) -> None:
    answer = analyst.get(f"{BATCHES}/{id}")

    assert answer.status_code == 404, answer.text
    assert answer.headers["content-type"] == "application/problem+json"


@pytest.mark.parametrize(
    "asked",
    [
        {"cursor": "abc"},
        {"cursor": "é"},
        {"limit": "0"},
        {"limit": "1001"},
        {"state": "gone"},
        {"since": "yesterday"},
        {"since": "2026-03-01T12:00:00"},
        {"since": "0001-01-01T00:00:00+10:00"},
        {"idPrefix": "x" * 257},
        {"restatement": "a/b/c"},
    ],
)
def test_bad_parameters_are_named_and_their_values_are_not_repeated(
    analyst: httpx.Client, asked: dict[str, str]
) -> None:
    answer = analyst.get(BATCHES, params=asked)

    assert answer.status_code == 400, answer.text
    problem = answer.json()
    assert problem["type"].startswith("https://lethe.dev/problems/invalid-")
    ((name, value),) = asked.items()
    assert name in problem["detail"].replace("The cursor", "cursor")
    assert len(value) < 5 or value not in answer.text
