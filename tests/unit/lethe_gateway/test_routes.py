"""Routes over protocols: what is asked of the parts, and what is answered."""

import hashlib
import json
import threading
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from fastapi.testclient import TestClient
from lethe.buffer.batch_rows import BatchRow
from lethe.contract.result import ErasureOutcome, RequestResult
from lethe.kube import AlreadyExists, Away, Conflict, KubeError, NotFound, RequestRefused
from lethe.ledger.tombstone import Erasure
from lethe_gateway import paging
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.limits import Concurrency
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.resources.client import problem_of_change
from lethe_gateway.settings import CallerLimits, GatewaySettings, UploadSettings
from lethe_gateway.tables.looking import problem_of
from lethe_gateway.tables.records import (
    BatchEventType,
    BatchFacts,
    ErasureStage,
    KnownErasure,
    PurgeFacts,
    PurgeState,
    TableTarget,
    TombstoneFacts,
    erasure_of,
    history_of,
    purge_of,
)

from tests.support.builders import NOW
from tests.support.clock import wait_until
from tests.support.gateway_lake import DATASET_STATUS
from tests.support.gateway_parts import READER, RIGHTS, TOKEN, OneTable, Parts, Resources, Rights
from tests.support.resources import a_dataset_body, a_restatement_body

DATASET = "/v1/namespaces/ns/datasets/flights"
A = BatchRow("A", "promoted", NOW, rows=3)
HASH = "0" * 64


def parts(**changes: object) -> Parts:
    resources = Resources(
        {"datasets": [a_dataset_body(status=DATASET_STATUS)], "restatements": [a_restatement_body("r")]}
    )
    return replace(Parts(resources=resources), **changes)  # type: ignore[arg-type]


FOREIGN_DATASET = {
    "conditions": [{"type": "Ready", "status": "Perhaps", "lastTransitionTime": "soon"}, {"reason": "NoType"}],
    "batches": {"promoted": "many", "refused": 2, "refusedBatches": [{"reason": "NoId"}, {"batchId": "B"}]},
    "buffer": "full",
    "consolidation": {"decision": "Dreaming", "nextTime": "2026-03-01"},
    "vacuum": {"decision": "Dreaming", "plan": {"files": [], "rows": 3, "run": "r"}, "newField": 1},
    "runs": [{"name": "no-kind"}, {"name": "r", "kind": "Dream", "phase": "Asleep", "attempt": "first"}],
}
FOREIGN_POLICY = {
    "metadata": {"name": "weekly"},
    "spec": {"approval": "ByOracle", "window": {"schedule": "@weekly", "durationSeconds": "long"}},
    "status": {"datasetsCount": "all", "lastRunTime": "2026-03-01T00:00:00Z"},
}


def test_a_list_shows_what_it_can_read_of_resources_of_another_version() -> None:
    """A value that does not fit is absent; an object without what it needs is left out."""
    restatement = a_restatement_body("r", {"phase": "Dreaming", "queuePosition": "first"}, operation="Dream")
    kinds = {
        "datasets": [a_dataset_body(status=FOREIGN_DATASET)],
        "restatements": [restatement],
        "vacuumpolicies": [FOREIGN_POLICY],
    }
    client = parts(resources=Resources(kinds)).client()

    def only(path: str) -> dict[str, Any]:
        (item,) = client.get(f"/v1/namespaces/ns/{path}").json()["items"]
        assert isinstance(item, dict)
        return item

    dataset = only("datasets")
    assert (dataset["ready"], dataset["batches"], dataset["buffer"], dataset["consolidation"]) == (
        {"type": "Ready", "status": "Perhaps"},
        {"refused": 2},
        {},
        {"decision": "Dreaming"},
    )
    assert client.get(DATASET).json()["refusedBatches"] == [{"batchId": "B"}]
    assert only("vacuums") == {"dataset": "flights", "decision": "Dreaming", "plan": {"rows": 3}}
    assert only("runs") == {"dataset": "flights", "name": "r", "kind": "Dream", "phase": "Asleep"}
    assert (only("restatements")["operation"], only("restatements")["phase"]) == ("Dream", "Dreaming")
    assert "queuePosition" not in only("restatements")
    assert only("vacuumpolicies") == {
        "name": "weekly",
        "approval": "ByOracle",
        "schedule": "@weekly",
        "lastRunTime": "2026-03-01T00:00:00Z",
        "conditions": [],
    }


@pytest.mark.parametrize(
    ("path", "named"),
    [
        (f"{DATASET}/erasures/fix", {"namespace": "ns", "dataset": "flights", "restatement": "fix"}),
        (f"{DATASET}/batches/secret", {"namespace": "ns", "dataset": "flights"}),
        ("/v1/namespaces/ns/datasets/Ana%20Example", {"namespace": "ns"}),
        ("/v1/namespaces/elsewhere/datasets/flights", {}),
    ],
)
def test_the_access_log_names_the_resource_of_the_path_and_nothing_that_can_be_no_resource(
    path: str, named: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level("INFO", "lethe_gateway.access"):
        parts(tables=OneTable([A])).client().get(path)

    line = json.loads(caplog.messages[-1])
    assert {k: line[k] for k in ("namespace", "dataset", "restatement") if k in line} == named


def test_rights_are_asked_before_a_table_is_opened() -> None:
    made = parts(identity=Rights(rights=RIGHTS - {Right.to_read_batches("ns", "flights")}))

    assert made.client().get(f"{DATASET}/batches").status_code == 403
    assert made.tables.targets == []


def test_a_namespace_that_is_not_served_is_asked_about_nowhere() -> None:
    def asked() -> None:
        raise AssertionError("a resource was read")

    made = parts(resources=Resources(before_each=asked))

    for path in ("datasets", "datasets/flights", "runs", "restatements/r", "changes", "datasets/flights/batches"):
        assert made.client().get(f"/v1/namespaces/elsewhere/{path}").status_code == 404


def test_a_problem_of_a_table_is_the_answer() -> None:
    for kind in (Kind.INDEX_BUILDING, Kind.CATALOG_AWAY, Kind.NO_TABLE, Kind.NOT_TRACKED, Kind.TABLE_UNREADABLE):
        made = parts(tables=OneTable(problem=Problem(kind, "Do this.", retry_after_seconds=5)))

        answer = made.client().get(f"{DATASET}/batches")

        assert (answer.status_code, answer.json()["type"], answer.headers["retry-after"]) == (
            kind.status,
            kind.type,
            "5",
        )


def test_a_bug_is_a_500_that_says_nothing_of_the_cause(caplog: pytest.LogCaptureFixture) -> None:
    made = parts(resources=Resources(before_each=lambda: 1 / 0))  # type: ignore[arg-type, return-value]

    answer = made.client().get(DATASET)

    assert (answer.status_code, answer.json()["type"]) == (500, Kind.INTERNAL.type)
    assert "ZeroDivisionError" not in answer.text
    assert "ZeroDivisionError" in caplog.text
    assert [r.name for r in caplog.records if r.exc_info] == [
        "lethe_gateway.guard"
    ]  # each line of the access log is JSON
    assert TOKEN not in caplog.text


@pytest.mark.parametrize(
    ("path", "asked", "said"),
    [
        (f"{DATASET}/batches", "id_prefix=a", 'unknown parameter "id_prefix" (did you mean "idPrefix"?)'),
        (f"{DATASET}/batches", "limitt=5", 'unknown parameter "limitt" (did you mean "limit"?)'),
        (
            "/v1/namespaces/ns/restatements",
            "datasett=a&dataset=b",
            'unknown parameter "datasett" (did you mean "dataset"?)',
        ),
        (DATASET, "x=1", 'unknown parameter "x"'),
    ],
)
def test_an_unknown_parameter_is_refused_with_the_nearest_name(path: str, asked: str, said: str) -> None:
    """A misspelt filter would otherwise give everything."""
    answer = parts().client().get(f"{path}?{asked}")

    assert (answer.status_code, answer.json()["type"]) == (400, Kind.INVALID_REQUEST.type)
    assert answer.json()["errors"] == [{"field": f"query.{asked.partition('=')[0]}", "message": said}]


def test_a_batch_id_may_contain_a_slash() -> None:
    row = replace(A, batch_id="2026/03/01")
    facts = BatchFacts(row, None, None, None, None, None)
    client = parts(tables=OneTable(facts={row.batch_id: facts})).client()

    assert client.get(f"{DATASET}/batches/2026%2F03%2F01").json()["id"] == row.batch_id


RECORD = json.dumps({"format-version": 2, "verified": {"run": "r"}}).encode()
VERIFIED = ErasureOutcome(restatement="ns/e/1", verified_time=NOW, record="s3://e/1.json", record_sha256=HASH)


def known(key: str, outcome: ErasureOutcome | None) -> KnownErasure:
    result = RequestResult(key=key, name="ns/e", succeeded=True, operation="Erase", erasure=outcome)
    return KnownErasure(key, result, None if outcome else Erasure(key, 1, NOW))


def test_a_record_that_was_changed_or_is_missing_is_told() -> None:
    right = VERIFIED.model_copy(update={"record_sha256": hashlib.sha256(RECORD).hexdigest()})
    files = {"s3://e/1.json": RECORD, "s3://e/1.json.sig": b"s"}
    for outcome, stored, expected in (
        (
            right,
            files,
            {"found": True, "unchanged": True, "signature": "s3://e/1.json.sig", "document": json.loads(RECORD)},
        ),
        (VERIFIED, {"s3://e/1.json": RECORD}, {"found": True, "unchanged": False}),
        (VERIFIED, {"s3://e/1.json": b"\xff"}, {"found": True, "unchanged": False}),
        (VERIFIED, {}, {"found": False}),
        (None, {}, {"found": False}),
    ):
        client = parts(tables=OneTable(known=[known("ns/e/1", outcome)], files=stored)).client()

        (found,) = client.get(f"{DATASET}/erasures/e").json()["items"]

        assert {k: v for k, v in found.items() if k != "erasure"} == expected


@pytest.mark.parametrize(
    "position", [[[1], "x"], [{}, {}], [], [1], [2**63, "a"], [1, 2], [True, "a"], ["1", "a"], [1, "\ud800"], 7]
)
def test_a_cursor_with_a_right_check_value_and_a_wrong_position_is_refused(
    position: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can compute the check value."""
    questions: list[Any] = []
    encode = paging.encode
    monkeypatch.setattr(paging, "encode", lambda at, question: questions.append(question) or encode(at, question))
    client = parts(tables=OneTable([A, replace(A, batch_id="B")])).client()
    right = client.get(f"{DATASET}/batches", params={"limit": 1}).json()["nextCursor"]
    assert client.get(f"{DATASET}/batches", params={"cursor": right}).status_code == 200

    answer = client.get(f"{DATASET}/batches", params={"cursor": encode(position, questions[0])})

    assert (answer.status_code, answer.json()["type"]) == (400, Kind.INVALID_CURSOR.type)


def test_a_request_that_takes_too_long_is_a_503_at_once_and_keeps_its_place_until_it_ends() -> None:
    ended = threading.Event()
    limits = CallerLimits(request_seconds=0.2, concurrent_per_caller=1)
    made = parts(settings=GatewaySettings(namespaces=("ns",), limits=limits))
    made.resources.before_each = lambda: ended.wait(60) and None  # type: ignore[func-returns-value]
    with made.client() as client:
        first = client.get(DATASET)
        second = client.get(DATASET)
        ended.set()

        assert (first.status_code, first.json()["type"]) == (503, Kind.TIMED_OUT.type)
        assert (second.status_code, second.json()["type"]) == (429, Kind.TOO_MANY_REQUESTS.type)
        wait_until(lambda: client.get(DATASET).status_code == 200, 30)


@pytest.mark.parametrize(
    ("route", "method", "places"), [(":complete", "POST", "completing"), ("/files/0", "PUT", "sending")]
)
def test_long_requests_of_one_tenant_leave_places_for_others(route: str, method: str, places: str) -> None:
    """A tenant may have many callers; those of one namespace together get half of the places."""
    other = Caller("ben", "u2", token="other")
    uploads = UploadSettings(completeAtOnce=2, throughAtOnce=2)
    made = parts(
        identity=Rights({TOKEN: READER, "other": other}),
        settings=GatewaySettings(namespaces=("ns", "elsewhere"), uploads=uploads),
    )
    with made.client() as client:
        held: Concurrency = getattr(client.app.state.services, places)  # type: ignore[attr-defined]
        shared = TestClient(client.app, headers={"Authorization": "Bearer other"}, raise_server_exceptions=False)
        held.enter("of ana", "\0\0ns")  # as a request that takes minutes
        path = f"{DATASET}/uploads/{'0' * 32}{route}"

        same = [client.request(method, path), shared.request(method, path)]
        elsewhere = shared.request(method, path.replace("/ns/", "/elsewhere/"))
        short = client.get(DATASET)

    assert [a.status_code for a in same] == [429, 429]
    assert all(a.headers["Retry-After"] for a in same)
    assert elsewhere.status_code not in (429, 503)
    assert short.status_code == 200
    assert held.active == 1


def test_a_file_with_an_impossible_name_is_told_which_names_are_possible() -> None:
    files = [{"path": "a.parquet", "size": 1}, {"path": "secret\n.parquet", "size": 1}]

    answer = parts().client().post(f"{DATASET}/uploads", json={"batchId": "B", "files": files})

    (error,) = answer.json()["errors"]
    assert (answer.status_code, error["field"]) == (400, "body.files.1.path")
    assert error["message"].startswith("the file cannot have this name. Names of files and folders do not begin with _")
    assert "secret" not in answer.text


def test_health_needs_no_token() -> None:
    made = parts()

    for path in ("/healthz", "/readyz", "/openapi.json"):
        assert made.client("").get(path).status_code == 200
    assert made.identity.asked == []


def test_errors_of_catalogs_do_not_repeat_their_texts() -> None:
    target = TableTarget("main", "air.flights", "ns/flights", "batch_id")

    found = problem_of(OSError("https://user:secret@store"), target)

    assert (found.kind, "secret" in found.detail) == (Kind.CATALOG_AWAY, False)


TO_CREATE = "create restatements.lethe.dev in the namespace ns"
POST = "POST /apis/lethe.dev/v1beta1/namespaces/ns/restatements: "


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (
            RequestRefused(403, "Forbidden", f'{POST}restatements.lethe.dev is forbidden: User "ana" cannot create resource'),
            Kind.FORBIDDEN,
            f"You need the right to {TO_CREATE}.",
        ),
        # Admission and quota answer 403, too.
        (RequestRefused(403, "Forbidden", f"{POST}exceeded quota: q"), Kind.REJECTED, "exceeded quota: q"),
        (RequestRefused(422, "Invalid", f"{POST}spec.batchIds: Required value"), Kind.REJECTED, "spec.batchIds: Required value"),
        (AlreadyExists(409, "AlreadyExists", f'{POST}"r" already exists'), Kind.ALREADY_EXISTS, '"r" already exists.'),
        (NotFound(404, "NotFound", f"{POST}gone"), Kind.NOT_FOUND, ""),
        (RequestRefused(401, "Unauthorized", POST), Kind.UNAUTHENTICATED, ""),
        (Away(0, "", f"{POST}connection refused"), Kind.API_SERVER_AWAY, "does not answer"),
        (Conflict(409, "Conflict", POST), Kind.API_SERVER_AWAY, "Try again later"),
    ],
)  # fmt: skip
def test_it_says_what_the_api_server_said(error: KubeError, kind: Kind, said: str) -> None:
    problem = problem_of_change(error, TO_CREATE)

    assert problem.kind is kind
    assert said in problem.detail
    assert "/apis/" not in problem.detail


REQUEST_KEY = "ns/erase-1/ab"


def facts(state: str = "reverted", *, rows: int | None = 3, **changes: Any) -> BatchFacts:
    row = BatchRow("A", state, NOW, rows=rows, snapshot_id=11, run_id="r", restatement=REQUEST_KEY)
    unknown = dict.fromkeys(BatchFacts.__dataclass_fields__)
    return BatchFacts(**{**unknown, "row": row, "shows_head": True, **changes})


def types(of: BatchFacts) -> list[BatchEventType]:
    return [e.type for e in history_of(of)]


def test_a_taken_back_batch_waits_for_its_purge_as_long_as_it_has_a_tombstone() -> None:
    tombstone = TombstoneFacts(NOW, None, False)

    assert purge_of(facts(tombstone=tombstone)).state is PurgeState.PENDING
    assert purge_of(facts(tombstone=replace(tombstone, partly=True))).state is PurgeState.PARTLY
    assert purge_of(facts()).state is PurgeState.DONE
    assert purge_of(facts(shows_head=False)).state is PurgeState.UNKNOWN, "an Undo may have brought its rows back"
    assert purge_of(facts(tombstone=tombstone, shows_head=False)).state is PurgeState.PENDING
    assert BatchEventType.PURGED not in types(facts(shows_head=False))
    assert types(facts(tombstone=tombstone)) == [BatchEventType.PROMOTED, BatchEventType.REVERTED]


def test_the_vacuum_is_named_as_long_as_its_snapshot_is_retained() -> None:
    later = NOW + timedelta(days=1)
    purged = history_of(facts(purge=PurgeFacts(12, later)))[-1]

    assert (purged.type, purged.time, purged.snapshot_id) == (BatchEventType.PURGED, later, 12)
    assert history_of(facts())[-1].time is None


def test_a_batch_that_was_taken_back_before_it_came_was_never_promoted_nor_purged() -> None:
    late = facts(rows=None)

    assert types(late) == [BatchEventType.REVERTED]
    assert (purge_of(late).state, history_of(late)[0].snapshot_id) == (PurgeState.NONE, 11)


def test_the_time_of_a_promotion_is_unknown_once_its_snapshot_has_expired() -> None:
    assert history_of(facts())[0].time is None
    assert history_of(facts(promoted_time=NOW))[0].time == NOW
    assert history_of(facts("promoted"))[0].time == NOW  # the time of its state


def test_a_held_batch_says_why_and_then_who_approved_it() -> None:
    held = BatchRow("A", "held", NOW, run_id="r", refusal_reason="CheckFailed", refusal_message="check c")
    approved = replace(held, restatement="ns/approve-1/ab", run_id="approving")

    (waits,) = history_of(facts(row=held))
    before, by = history_of(facts(row=approved))

    assert (waits.type, waits.time, waits.run_id, waits.reason) == (BatchEventType.HELD, NOW, "r", "CheckFailed")
    assert (before.type, before.time, before.message) == (BatchEventType.HELD, None, "check c")
    assert (by.type, by.time, by.run_id) == (BatchEventType.APPROVED, NOW, "approving")
    assert by.restatement is not None
    assert by.restatement.name == "approve-1"


def test_an_erasure_goes_through_its_states() -> None:
    pending = Erasure(REQUEST_KEY, 1, NOW)
    outcome = ErasureOutcome(restatement=REQUEST_KEY, verified_time=NOW, record="s3://r.json", record_sha256="ab")
    request = RequestResult(key=REQUEST_KEY, name="ns/erase-1", succeeded=True, erasure=outcome)

    def state(**of: Any) -> ErasureStage | None:
        found = erasure_of(facts("erased", **of))
        return found.state if found else None

    assert state(erasure=pending) is ErasureStage.ROWS_IN_TABLE
    assert state(erasure=replace(pending, purged_at=3)) is ErasureStage.NOT_VERIFIED
    assert state(erasure=replace(pending, purged_at=3, blockers_count=2)) is ErasureStage.BLOCKED
    assert state(request=request) is ErasureStage.VERIFIED
    assert state() is None
    assert types(facts("erased", request=request))[-1] is BatchEventType.ERASURE_VERIFIED


@pytest.mark.parametrize(
    "field", ['"batchIds": ["\\ud800"]', '"reason": "\\ud83d!"', '"\\udc00": 1', '"later": NaN', '"later": [1e999]']
)
def test_a_spec_that_the_api_server_would_change_creates_nothing(field: str) -> None:
    """It takes half of a surrogate pair for U+FFFD, so another batch could be named."""
    gateway = parts()
    spec = f'{{"datasetRef": {{"name": "flights"}}, "operation": "Revert", {field}}}'

    answer = gateway.client().post(
        "/v1/namespaces/ns/restatements",
        content=f'{{"spec": {spec}}}',
        headers={"Content-Type": "application/json"},
    )

    assert (answer.status_code, answer.json()["errors"][0]["pointer"]) == (400, "#/spec")
    assert gateway.writer.created == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (
            "restatements",
            '{"spec": {"datasetRef": {"name": "a"}, "operation": "Revert", "batchIds": ["a"], "batchIds": ["b"]}}',
        ),
        ("datasets/flights/uploads", '{"batchId": "a", "files": [{"path": "a.csv", "size": 1}], "batchId": "b"}'),
    ],
)
def test_a_key_that_is_given_twice_is_refused(path: str, body: str) -> None:
    """Otherwise one of the values would be ignored."""
    gateway = parts()

    answer = gateway.client().post(
        f"/v1/namespaces/ns/{path}",
        content=body,
        headers={"Content-Type": "application/json"},
    )

    assert answer.status_code == 400
    assert "is given twice" in answer.json()["detail"]
    assert gateway.writer.created == []
