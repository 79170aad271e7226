"""What is done for a subject request, and what its status says."""

import re
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest
from lethe.base.errors import Verdict
from lethe_operator.reasons import Reason
from lethe_operator.request.decide import RequestActions, RequestWorld, child_document, child_name, decide, verified
from lethe_operator.request.targets import targets_of
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Invalid
from lethe_operator.resources.restatement import Restatement, parse_restatement

from tests.support.builders import NOW
from tests.support.resources import a_dataset, a_restatement, condition, message
from tests.support.statuses import a_condition, a_restatement_status, document

VALUES = {"secretKeyRef": {"name": "erase-12", "key": "values"}}
SPEC: dict[str, Any] = {
    "datasetRef": None,
    "batchIds": [],
    "operation": "Erase",
    "datasetSelector": {},
    "subject": {"identity": "customer", "valuesFrom": VALUES},
    "evictBySeconds": 60,
    "ticket": "T-12",
}
A_VERIFIED = {"verifiedTime": NOW.isoformat(), "record": "s3://l/t/_erasures/r.json", "recordSha256": "00"}
PURGED = {"vacuumSnapshotId": 7}

STATES: dict[str, tuple[dict[str, Any], str]] = {
    "waits": ({"phase": "Queued", "conditions": [a_condition("Ready", "False", "Queued")]}, "Waiting"),
    "runs": ({"phase": "Running", "conditions": [a_condition("Ready", "False", "Running")]}, "Running"),
    "stalled": (
        {"conditions": [a_condition("Ready", "False", "SecretNotAllowed", "no"), a_condition("Stalled")]},
        "Blocked",
    ),
    "failed": (
        {"conditions": [a_condition("Ready", "True"), a_condition("Succeeded", "False", "Cancelled")]},
        "Blocked",
    ),
    "hidden": ({"conditions": [a_condition(), a_condition("Erased", "False", "RowsInTable")]}, "Hidden"),
    "purged": (
        {"conditions": [a_condition(), a_condition("Erased", "Unknown", "ErasureNotVerified")], "erasure": PURGED},
        "Purged",
    ),
    "kept": (
        {
            "conditions": [a_condition(), a_condition("Erased", "False", "ErasureBlocked", "a tag")],
            "erasure": {**PURGED, "blockedByCount": 1},
        },
        "Blocked",
    ),
    "verified": (
        {"conditions": [a_condition(), a_condition("Erased", "True", "Erased")], "erasure": {**PURGED, **A_VERIFIED}},
        "Verified",
    ),
}


def dataset(name: str, column: str = "email", via: str = "", **spec: Any) -> Dataset:
    lookup = {"via": {"dataset": via, "from": "email", "to": "id"}} if via else {}
    return a_dataset(name, identities=[{"name": "customer", "column": column, **lookup}], **spec)


def request(status: Any = None, **spec: Any) -> Restatement:
    return a_restatement("erase-12", status=status, **{**SPEC, **spec})


def child(of: str, state: str, **spec: Any) -> Restatement:
    status = a_restatement_status(
        *STATES[state][0]["conditions"], **{k: v for k, v in STATES[state][0].items() if k != "conditions"}
    )
    rows = {"anyOf": [{"column": "email", "valuesFrom": VALUES}]}
    spec = {"datasetRef": {"name": of}, "operation": "Erase", "batchIds": [], "rows": rows, **spec}
    return a_restatement(child_name("erase-12", of), status=status, **spec)


def decided(
    *datasets: Dataset | Invalid,
    asked: Restatement | None = None,
    now: datetime = NOW,
    children: dict[str, str] | None = None,
    **world: Any,
) -> RequestActions:
    asked = asked or request()
    made = {child_name("erase-12", d): child(d, state) for d, state in (children or {}).items()}
    return decide(RequestWorld(asked, targets_of(asked.spec, datasets), made, **world), now)


def created(actions: RequestActions) -> list[str]:
    return [d["metadata"]["name"] for d in actions.create]


def shown(actions: RequestActions) -> dict[str, tuple[str, str]]:
    """State and reason of each Dataset."""
    assert actions.status.subject is not None
    return {d.name: (d.state or "", d.reason or "") for d in actions.status.subject.datasets or ()}


def counts(actions: RequestActions) -> tuple[int | None, ...]:
    s = actions.status.subject
    assert s is not None
    return s.selected, s.hidden, s.purged, s.verified, s.blocked


A, B, CARDS = dataset("a"), dataset("b"), dataset("cards", "card", via="a")


def test_one_restatement_is_made_for_each_dataset() -> None:
    actions = decided(A, B, a_dataset("weather"))
    assert created(actions) == ["erase-12-a", "erase-12-b"]
    made = actions.create[0]
    assert made["metadata"]["ownerReferences"][0]["uid"] == "uid-erase-12"
    assert made["spec"] == {
        "datasetRef": {"name": "a"},
        "operation": "Erase",
        "rows": {"anyOf": [{"column": "email", "valuesFrom": VALUES}]},
        "ticket": "T-12",
        "evictBySeconds": 60,
    }
    assert actions.status.subject is not None
    assert actions.status.subject.without_identity == 1


def test_a_dataset_with_an_invalid_spec_keeps_the_request_open() -> None:
    """It may have rows of the subject. The other Datasets go on."""
    broken = Invalid("Dataset", B.meta, B.stored, "spec.table: Field required")

    assert created(decided(A, broken)) == ["erase-12-a"]
    actions = decided(A, broken, children={"a": "verified"})

    assert not actions.complete
    assert shown(actions) == {"a": ("Verified", "Erased"), "b": ("Blocked", "InvalidSpec")}
    assert "Dataset b has an invalid spec" in message(actions.status, "Stalled")


REDACT = {"columns": [{"column": "email", "method": "SetNull"}, {"column": "seat", "method": "Constant", "value": "?"}]}


def redacting(of: str, *conditions: dict[str, Any], **status: Any) -> Restatement:
    rows = {"anyOf": [{"column": "email", "valuesFrom": VALUES}]}
    spec = {"datasetRef": {"name": of}, "operation": "Redact", "batchIds": [], "rows": rows, "redact": REDACT}
    return a_restatement(child_name("erase-12", of), status=a_restatement_status(*conditions, **status), **spec)


def test_a_redact_is_passed_on_with_the_columns_that_it_names_once() -> None:
    asked = request(operation="Redact", redact=REDACT)
    actions = decided(A, B, asked=asked)
    assert [d["spec"]["operation"] for d in actions.create] == ["Redact", "Redact"]
    assert all(d["spec"]["redact"] == REDACT for d in actions.create)
    keys = {parse_restatement(d).key for d in actions.create}
    assert len(keys) == 2


def test_a_dataset_without_one_of_the_columns_to_redact_is_blocked_and_says_why() -> None:
    """Its run has found that out. The others go on, and the texts say what has to go."""
    asked = request(operation="Redact", redact=REDACT)
    done = redacting("a", a_condition(), result={"committedTime": NOW.isoformat(), "rowsRedacted": 3})
    text = "names seat, and the table has no such column. Nothing was redacted."
    ended = (("Ready", "True"), ("Succeeded", "False"))
    lacks = redacting("b", *(a_condition(*c, "ColumnNotFound", text) for c in ended))
    world = RequestWorld(asked, targets_of(asked.spec, [A, B]), {c.meta.name: c for c in (done, lacks)})
    status = document(decide(world, NOW).status)
    assert condition(status, "Stalled") == ("True", "DatasetsBlocked")
    assert "Readers no longer see the old values in 1 of 2 Datasets." in message(status, "Stalled")
    assert f"b: {text}" in message(status, "Stalled")
    shown = {d["name"]: d for d in status["subject"]["datasets"]}
    assert (shown["b"]["state"], shown["b"]["reason"]) == ("Blocked", "ColumnNotFound")
    assert shown["a"]["rowsRedacted"] == status["result"]["rowsRedacted"] == 3
    assert "rowsErased" not in shown["a"] | status["result"]


def test_the_same_request_makes_the_same_restatements() -> None:
    """A request that was deleted and created again continues in the ledgers of the tables."""
    first, second = (request(meta={"uid": uid}) for uid in ("1", "2"))
    target = targets_of(first.spec, [A]).included[0]
    keys = {parse_restatement(child_document(r, target)).key for r in (first, second)}
    assert len(keys) == 1


@pytest.mark.parametrize("state", STATES)
def test_each_state_of_a_restatement(state: str) -> None:
    actions = decided(A, children={"a": state})
    assert shown(actions)["a"][0] == STATES[state][1]
    assert actions.complete is (state == "verified")
    assert not actions.create


def test_a_table_of_keys_comes_after_those_that_look_up_in_it() -> None:
    assert created(decided(A, CARDS)) == ["erase-12-cards"]
    assert shown(decided(A, CARDS, children={"cards": "runs"}))["a"] == ("Waiting", "WaitsForLookups")
    assert created(decided(A, CARDS, children={"cards": "hidden"})) == ["erase-12-a"]


@pytest.mark.parametrize(
    "forged",
    [
        child("cards", "hidden", rows=None, batchIds=["A"]),
        child("cards", "hidden", dryRun=True),
        a_restatement(
            "other-name",
            status=child("cards", "hidden").status,
            datasetRef={"name": "cards"},
            operation="Erase",
            batchIds=["A"],
        ),
    ],
)
def test_a_table_of_keys_does_not_start_after_a_restatement_that_is_not_of_the_request(forged: Restatement) -> None:
    """It names the request as its owner, has succeeded, and has looked up nothing."""
    asked = request()
    actions = decide(RequestWorld(asked, targets_of(asked.spec, [A, CARDS]), {forged.meta.name: forged}), NOW)
    assert "erase-12-a" not in created(actions)
    assert shown(actions)["a"] == ("Waiting", "WaitsForLookups")


def test_a_restatement_of_another_name_does_not_replace_that_of_the_request() -> None:
    asked = request()
    own, forged = child("a", "verified"), a_restatement("other", datasetRef={"name": "a"}, batchIds=["A"])
    for children in ({own.meta.name: own, "other": forged}, {"other": forged, own.meta.name: own}):
        assert shown(decide(RequestWorld(asked, targets_of(asked.spec, [A]), children), NOW))["a"][0] == "Verified"


def test_a_dataset_that_joins_after_its_keys_are_gone_is_blocked() -> None:
    actions = decided(A, CARDS, children={"a": "hidden"})
    assert shown(actions)["cards"] == ("Blocked", "LookupErased")
    assert created(actions) == []
    assert condition(document(actions.status), "Stalled") == ("True", "DatasetsBlocked")


def test_a_dataset_joins_late() -> None:
    assert created(decided(A, B, children={"a": "verified"})) == ["erase-12-b"]


def test_a_dataset_that_is_not_selected_any_more_stays_part_of_the_request() -> None:
    actions = decided(children={"a": "hidden"})
    assert counts(actions) == (1, 1, 0, 0, 0)


def test_counts_and_conditions_while_it_goes_on() -> None:
    actions = decided(A, B, dataset("c"), children={"a": "verified", "b": "purged", "c": "runs"})
    assert counts(actions) == (3, 2, 2, 1, 0)
    status = document(actions.status)
    assert status["progress"] == "2/3 Datasets"
    assert condition(status, "Succeeded") == ("Unknown", "Running")
    assert condition(status, "Erased") == ("False", "ErasureNotVerified")


def test_it_succeeds_when_the_rows_are_hidden_everywhere() -> None:
    status = document(decided(A, B, children={"a": "hidden", "b": "kept"}).status)
    assert condition(status, "Succeeded") == ("True", "Succeeded")
    assert condition(status, "Ready")[0] == "True"
    assert condition(status, "Erased") == ("False", "ErasureBlocked")
    assert "b: a tag" in message(status, "Erased")


def test_nothing_to_erase_from() -> None:
    status = document(decided(a_dataset("weather")).status)
    assert condition(status, "Stalled") == ("True", "NoDatasets")


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"denied": {"a": Verdict(Reason.REQUESTER_NOT_ALLOWED, "no right")}}, "RequesterNotAllowed"),
        ({"names_taken": frozenset(["erase-12-a"])}, "NameTaken"),
    ],
)
def test_a_dataset_is_blocked_and_the_others_go_on(more: Any, reason: str) -> None:
    actions = decided(A, B, **more)
    assert shown(actions)["a"] == ("Blocked", reason)
    assert created(actions) == ["erase-12-b"]


@pytest.mark.parametrize(
    "forged",
    [
        child("a", "verified", rows={"column": "email", "valuesFrom": {"secretKeyRef": {"name": "other", "key": "v"}}}),
        child("a", "verified", dryRun=True),
        child("a", "verified", rows=None, batchIds=["A"]),
    ],
)
def test_a_restatement_that_erases_something_else_does_not_count(forged: Restatement) -> None:
    asked = request()
    actions = decide(RequestWorld(asked, targets_of(asked.spec, [A]), {forged.meta.name: forged}), NOW)
    assert shown(actions)["a"] == ("Blocked", "NameTaken")
    assert not actions.complete


def test_a_redact_of_other_columns_does_not_count() -> None:
    asked = request(operation="Redact", redact={"columns": REDACT["columns"][:1]})
    forged = redacting("a", *STATES["verified"][0]["conditions"], erasure=STATES["verified"][0]["erasure"])
    actions = decide(RequestWorld(asked, targets_of(asked.spec, [A]), {forged.meta.name: forged}), NOW)
    assert (shown(actions)["a"], actions.complete) == (("Blocked", "NameTaken"), False)


def test_a_dry_run_plans_each_dataset_and_then_ends() -> None:
    asked = request(dryRun=True)
    assert decided(A, asked=asked).create[0]["spec"]["dryRun"] is True
    planned = child("a", "hidden", dryRun=True)
    actions = decide(RequestWorld(asked, targets_of(asked.spec, [A]), {planned.meta.name: planned}), NOW)
    assert shown(actions)["a"][0] == "Planned"
    assert condition(document(actions.status), "Succeeded") == ("True", "Planned")
    assert (counts(actions), actions.complete) == ((1, 0, 0, 0, 0), False)
    ended = decided(A, B, asked=request(dryRun=True, status=actions.status))
    assert (ended.create, ended.status) == ((), actions.status)


def test_suspend_and_cancel_are_passed_on() -> None:
    suspended = decided(A, B, asked=request(suspend=True), children={"a": "runs"})
    assert (suspended.create, suspended.change) == ((), {"erase-12-a": {"suspend": True}})
    cancelled = decided(A, B, asked=request(cancel=True), children={"a": "runs", "b": "verified"})
    assert (cancelled.create, cancelled.change) == ((), {"erase-12-a": {"cancel": True}})
    assert cancelled.status.phase == "Running"
    ended = decided(A, B, asked=request(cancel=True), children={"a": "failed", "b": "verified"})
    assert (ended.status.phase, ended.change) == ("Cancelled", {})


def test_nothing_joins_a_request_that_is_verified() -> None:
    before = decided(A, children={"a": "verified"})
    assert before.complete
    final = verified(request(), before, _erasure(), NOW)
    assert condition(document(final), "Erased") == ("True", "Erased")
    after = decided(A, B, asked=request(status=final), children={"a": "verified"})
    assert (after.create, after.complete, after.status) == ((), False, final)


def test_the_request_says_which_batches_no_run_has_searched() -> None:
    """Those of a bad day, which never were in a table."""
    bad = dataset("a", status={"batches": {"promoted": 3, "held": 1, "refused": 2}})
    quiet = dataset("b", status={"batches": {"promoted": 3, "held": 0, "refused": 0}})
    told = "Not searched: held and refused batches of a (1 held, 2 refused). They may contain the subject: revert held ones"
    for states in ({"a": "hidden", "b": "verified"}, {"a": "verified", "b": "verified"}):
        assert told in message(document(decided(bad, quiet, children=states).status), "Erased")
    final = verified(request(), decided(bad, quiet, children={"a": "verified", "b": "verified"}), _erasure(), NOW)
    assert told in message(document(final), "Erased")
    assert "Not searched" not in message(document(decided(quiet, children={"b": "verified"}).status), "Erased")


@pytest.mark.parametrize(
    ("number", "named"), [(3, "c (1 held, 0 refused). They"), (4, "c (1 held, 0 refused) and 1 more. They")]
)
def test_at_most_three_datasets_with_batches_that_are_not_searched_are_named(number: int, named: str) -> None:
    held = [dataset(name, status={"batches": {"held": 1}}) for name in "abcd"[:number]]

    shown = message(document(decided(*held, children=dict.fromkeys("abcd"[:number], "hidden")).status), "Erased")

    assert named in shown


def test_it_is_deleted_some_time_after_it_is_verified() -> None:
    final = verified(request(), decided(A, children={"a": "verified"}), _erasure(), NOW)
    asked = replace(request(status=final), spec=request(ttlSecondsAfterFinished=60).spec)
    assert not decided(A, asked=asked, now=NOW + timedelta(seconds=59)).delete
    assert decided(A, asked=asked, now=NOW + timedelta(seconds=60)).delete


def _erasure() -> Any:
    erasure = child("a", "verified").status.erasure
    assert erasure is not None
    return erasure


@pytest.mark.parametrize("request_name", ["a", f"{'a' * 241}.{'b' * 11}", f"{'a' * 240}-{'b' * 12}", "a" * 253])
def test_the_name_of_its_restatement_is_one_of_kubernetes(request_name: str) -> None:
    name = child_name(request_name, "b" * 63)

    part = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
    assert re.fullmatch(rf"{part}(\.{part})*", name), name
    assert len(name) <= 253
