"""Both sides of the run contract read what the other wrote, and the end of a run always fits where it is told."""

import json
from dataclasses import replace
from typing import assert_never

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import Verdict
from lethe.base.names import MAX_BATCH_ID_LENGTH
from lethe.contract.result import (
    LISTED_AT_MOST,
    ConsolidationResult,
    ErasureCheckResult,
    Phase,
    Progress,
    ReanchoringResult,
    RefusedBatch,
    RequestResult,
    RestatementGroupResult,
    RunOutcome,
    VacuumResult,
    parse_result,
)
from lethe.contract.run import ConditionRef, Manager, Provenance, RowsRef, RunKind, RunPointer, is_pointer, parse_run
from lethe.ledger.format import BATCHES
from lethe.ledger.ledger import BatchState, RequestEntry
from lethe.restatement.plan import recalled
from pydantic import ValidationError

from tests.support.builders import NOW, RUN, a_batch, a_replay, a_request, a_run, a_run_result

TERMINATION_MESSAGE_BYTES = 4096  # Kubernetes cuts here
RUNS = [
    a_run(batch_ids=["a b/é", "B"]),
    a_run(RunKind.RESTATEMENT, requests=[a_request(evict_by_seconds=5), a_replay(reason="late")]),
    a_run(RunKind.VACUUM),
]


@pytest.mark.parametrize("run", RUNS, ids=lambda run: str(run.kind))
def test_a_run_document_comes_back_as_it_was(run: object) -> None:
    text = run.to_json()  # type: ignore[attr-defined]

    assert parse_run(text) == run
    assert "_" not in "".join(json.loads(text))  # camelCase on the wire
    assert not is_pointer(json.loads(text))


def test_an_error_names_the_wrong_field_and_unknown_fields_are_refused() -> None:
    """An operator newer than the image must not have half of what it says carried out."""
    document = json.loads(RUNS[0].to_json())

    with pytest.raises(ValidationError, match="evictWhen"):
        parse_run(json.dumps({**document, "evictWhen": 1}))
    with pytest.raises(ValidationError, match="runId"):
        parse_run(json.dumps({k: v for k, v in document.items() if k != "runId"}))


def test_results_and_progress_of_a_newer_version_are_read() -> None:
    """After a rollback, an older operator reads what a newer run reported, also within its lists."""
    refused = RefusedBatch(batch_id="A", reason="UnreadableFile", message="m")
    result = a_run_result(RunKind.CONSOLIDATION, refused=(refused,), refused_count=1)
    document = json.loads(result.to_json())
    document["newer"] = 1
    document["refused"][0]["newer"] = {"a": 1}
    progress = Progress(run_id=RUN, phase=Phase.READING, updated_time=NOW)

    assert parse_result(json.dumps(document), RunKind.CONSOLIDATION) == result
    assert Progress.model_validate_json(json.dumps({**json.loads(progress.to_json()), "newer": 1})) == progress


def test_a_request_that_a_newer_version_recorded_in_the_ledger_is_read() -> None:
    wanted = RequestResult(key="k", name="air/r", succeeded=True, provenance=Provenance(managers=(Manager(name="m"),)))
    document = wanted.model_dump(mode="json", by_alias=True)
    document["newer"] = document["provenance"]["newer"] = document["provenance"]["managers"][0]["newer"] = 1

    assert recalled(RequestEntry("k", "r", NOW, document)) == wanted


def test_one_condition_of_the_previous_release_is_read_as_several_are() -> None:
    before = {"column": "tail", "valuesFile": "/f", "secret": "erase-a", "secretKey": "k", "valuesDigest": "1:2"}
    condition = ConditionRef(column="tail", values_file="/f", secret="erase-a", secret_key="k")

    assert RowsRef.model_validate(before) == RowsRef(conditions=(condition,), values_digest="1:2")


def test_a_pointer_is_distinguished_from_a_run() -> None:
    assert is_pointer(json.loads(RunPointer(catalog="main", uri="s3://lake/t/_runs/1.json", sha256="0").to_json()))


@pytest.mark.parametrize("kind", RunKind, ids=lambda kind: kind.name)
def test_a_result_comes_back_as_the_model_of_its_kind(kind: RunKind) -> None:
    result = a_run_result(kind, snapshot_id=7, message="done")

    assert parse_result(result.to_json(), kind) == result
    assert json.loads(result.to_json())["kind"] == kind.family.value


# What version 0.1 wrote for every kind: the fields of all of them, those without a value included.
OLD_RESULT = {
    "apiVersion": "lethe.dev/run/v1",
    "runId": RUN,
    "attempt": 2,
    "outcome": "Committed",
    "reason": "",
    "permanent": False,
    "message": "",
    "snapshotId": 7,
    "finishedTime": NOW.isoformat(),
    "batchesPromoted": 3,
    "batchesWithheld": 0,
    "refusedCount": 1,
    "refused": [{"batchId": "A", "reason": "CorruptFile", "message": "x.parquet"}],
    "rowsAdded": 5,
    "filesAdded": 1,
    "bytesAdded": 9,
    "requests": [{"key": "ns/a/0", "name": "ns/a", "succeeded": True, "again": False, "operation": ""}],
    "filesRewritten": 4,
    "tombstonesPurged": 2,
    "erasures": [{"restatement": "ns/e/0", "blockedByCount": 0}],
    "erasuresOpen": 1,
    "orphanFiles": [],
    "snapshotsExpired": 6,
    "ledgerFilesRemoved": 0,
    "notTracked": "",
}


@pytest.mark.parametrize("kind", RunKind, ids=lambda kind: kind.name)
def test_a_result_of_an_earlier_version_is_read_as_its_kind(kind: RunKind) -> None:
    read = parse_result(json.dumps({**OLD_RESULT, "kind": kind.family.value}), kind)

    assert (read.family, read.attempt, read.outcome, read.snapshot_id) == (kind.family, 2, RunOutcome.COMMITTED, 7)
    assert read.snapshots_expired == 6
    match read:
        case ConsolidationResult():
            assert (read.batches_promoted, read.refused[0].batch_id, read.rows_added) == (3, "A", 5)
        case RestatementGroupResult():
            assert (read.requests[0].key, read.requests[0].operation) == ("ns/a/0", None)
        case VacuumResult():
            assert (read.files_rewritten, read.tombstones_purged, read.erasures_open) == (4, 2, 1)
        case ErasureCheckResult():
            assert (read.erasures[0].restatement, read.erasures_open) == ("ns/e/0", 1)
        case ReanchoringResult():
            pass
        case _:
            assert_never(read)


anything = st.text(st.characters(exclude_categories=["Cs"]))
long = st.builds(lambda piece, times: piece * times, anything.filter(bool), st.integers(1, 6000))
ids = st.lists(long.map(lambda t: t[:MAX_BATCH_ID_LENGTH]), max_size=LISTED_AT_MOST)


@given(reason=long, message=long, refused=ids)
def test_the_end_of_a_run_always_fits_the_termination_message(reason: str, message: str, refused: list[str]) -> None:
    """Cut by Kubernetes, it would be no JSON; the counts are what the operator cannot do without."""
    result = a_run_result(
        RunKind.CONSOLIDATION,
        reason=reason[:60],
        message=message,
        refused=tuple(RefusedBatch(batch_id=i, reason="CorruptFile", message=message) for i in refused),
        refused_count=len(refused),
        rows_added=9**9,
    )

    compact = result.compact()

    assert len(compact.encode()) <= TERMINATION_MESSAGE_BYTES
    read = parse_result(compact, RunKind.CONSOLIDATION)
    assert (read.run_id, read.outcome, read.refused_count, read.rows_added) == (RUN, "Committed", len(refused), 9**9)
    assert message.startswith(read.message)


REFUSAL = Verdict("SchemaMismatch", "p2: column v: text")


def test_a_refusal_survives_the_ledger_and_the_result() -> None:
    entry = a_batch("A", BatchState.REFUSED, refusal=REFUSAL)
    record = BATCHES.to_record(entry)

    assert record["refusal"] == "SchemaMismatch: p2: column v: text"
    assert BATCHES.of_record(record) == entry
    assert RefusedBatch.of("A", REFUSAL).verdict == REFUSAL


@pytest.mark.parametrize("text", ["nobody knows why", "a reason: with a blank", "", "Reason:without a blank"])
def test_a_text_of_an_earlier_version_is_kept_as_it_is(text: str) -> None:
    found = Verdict.parse(text)

    assert (found.reason, found.message, str(found)) == ("", text, text)
    assert str(replace(found, reason="Why")) == f"Why: {text}"
