"""Both sides of the run contract read what the other wrote, and the end of a run always fits where it is told."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.ids import MAX_BATCH_ID_LENGTH
from lethe.contract.kind import RunFamily
from lethe.contract.result import LISTED_AT_MOST, Phase, Progress, RefusedBatch, RequestResult, RunResult
from lethe.contract.run import RunKind, RunPointer, is_pointer, parse_run
from pydantic import ValidationError

from tests.support.builders import NOW, RUN, a_replay, a_request, a_run

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


def test_a_document_says_which_field_is_wrong_and_takes_no_unknown_one() -> None:
    """An operator newer than the image must not have half of what it says carried out."""
    document = json.loads(RUNS[0].to_json())

    with pytest.raises(ValidationError, match="evictWhen"):
        parse_run(json.dumps({**document, "evictWhen": 1}))
    with pytest.raises(ValidationError, match="runId"):
        parse_run(json.dumps({k: v for k, v in document.items() if k != "runId"}))


def test_a_pointer_is_told_from_a_run() -> None:
    assert is_pointer(json.loads(RunPointer(catalog="main", uri="s3://lake/t/_runs/1.json", sha256="0").to_json()))


def test_progress_comes_back() -> None:
    progress = Progress(run_id=RUN, phase=Phase.PURGE_DATA, message="3 files", rows=7, updated_time=NOW)

    assert Progress.model_validate_json(progress.to_json()) == progress


def a_result(**changes: object) -> RunResult:
    return RunResult(run_id=RUN, family=RunFamily.CONSOLIDATION, outcome="Committed", finished_time=NOW, **changes)  # type: ignore[arg-type]


def test_a_small_result_is_told_whole() -> None:
    result = a_result(refused=(RefusedBatch(batch_id="A", reason="CorruptFile", message="x.parquet"),))

    assert RunResult.model_validate_json(result.compact()) == result


anything = st.text(st.characters(exclude_categories=["Cs"]))
long = st.builds(lambda piece, times: piece * times, anything.filter(bool), st.integers(1, 6000))
ids = st.lists(long.map(lambda t: t[:MAX_BATCH_ID_LENGTH]), max_size=LISTED_AT_MOST)


@given(reason=long, message=long, refused=ids, unknown=ids)
def test_the_end_of_a_run_always_fits_the_termination_message(
    reason: str, message: str, refused: list[str], unknown: list[str]
) -> None:
    """Cut by Kubernetes, it would be no JSON; the counts are what the operator cannot do without."""
    result = a_result(
        reason=reason[:60],
        message=message,
        refused=tuple(RefusedBatch(batch_id=i, reason="CorruptFile", message=message) for i in refused),
        refused_count=len(refused),
        requests=(RequestResult(key="k", name="n", succeeded=True, unknown_batch_ids=tuple(unknown)),),
        orphan_files=tuple(unknown),
        rows_added=9**9,
    )

    compact = result.compact()

    assert len(compact.encode()) <= TERMINATION_MESSAGE_BYTES
    read = RunResult.model_validate_json(compact)
    assert (read.run_id, read.outcome, read.refused_count, read.rows_added) == (RUN, "Committed", len(refused), 9**9)
    assert message.startswith(read.message)
