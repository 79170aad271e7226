"""The erasures of a ledger, checks of them, and their records, read without Lethe's code."""

import hashlib
import io
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner
from lethe.cli.main import cli
from lethe.contract.result import ErasureOutcome, RunResult
from lethe.contract.run import RunSpec, SnapshotLimits
from lethe.ledger.tombstone import Erasure

from tests.spark.support.story import Story, local
from tests.support.builders import a_request

DAY = 86_400
DUE = 60  # seconds: within the lead of a day
_NUMBERS = itertools.count(1)


def erase(story: Story, *batch_ids: str, name: str = "erase", seconds: int | None = DUE) -> None:
    assert story.restate(a_request(name, "Erase", batch_ids=batch_ids, evict_by_seconds=seconds)).succeeded


def an_erasure_check(story: Story, limits: SnapshotLimits | None = None, **changes: Any) -> RunSpec:
    """A run that purges nothing and only checks the erasures."""
    spec = story.vacuuming(limits, key=f"check {next(_NUMBERS)}")
    assert spec.vacuum is not None
    changes = {"erasures_only": True, **changes}
    return spec.model_copy(update={"vacuum": spec.vacuum.model_copy(update=changes)})


def check_erasures(story: Story, limits: SnapshotLimits | None = None, **at: Callable[[], object]) -> RunResult:
    return story.run(an_erasure_check(story, limits), **at)


def next_attempt(spec: RunSpec) -> RunSpec:
    """The same run once more, told that its attempts until now have ended."""
    return spec.model_copy(update={"attempt": spec.attempt + 1, "ended_attempts": tuple(range(1, spec.attempt + 1))})


def the_erasure(story: Story) -> Erasure:
    """The one that is open."""
    (erasure,) = story.ledger().open_erasures
    return erasure


def the_outcome(result: RunResult) -> ErasureOutcome:
    (outcome,) = result.erasures
    return outcome


def blockers(result: RunResult) -> list[str]:
    """What holds the one erasure, in words without what differs from run to run."""
    return [b.partition(" until ")[0].partition(" (")[0] for b in the_outcome(result).blocked_by]


def the_record(result: RunResult) -> dict[str, Any]:
    """Of the one erasure that was verified, after its digest was compared."""
    outcome = the_outcome(result)
    assert outcome.verified_time is not None, outcome.blocked_by
    content = Path(local(outcome.record)).read_bytes()
    assert hashlib.sha256(content).hexdigest() == outcome.record_sha256
    return dict(json.loads(content))


def check_closed(story: Story, result: RunResult) -> None:
    """Nothing is open, none of the recorded files is there, and the ledger says the same as the run."""
    record, outcome, ledger = the_record(result), the_outcome(result), story.ledger()
    assert (ledger.open_erasures, dict(ledger.purged_files), result.erasures_open) == ((), {}, 0)
    reported = ledger.requests[outcome.restatement].result["erasure"]
    assert reported == outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
    check_evidence(story, outcome.restatement)
    names = {Path(f["path"]).name for f in record["files"]}
    assert record["files-count"] == len(record["files"]) == len(names)
    left = {p.name for p in Path(local(story.table().location())).rglob("*") if p.is_file()}
    assert names.isdisjoint(left)


def leave(path: Path, hours: int, content: bytes = b"x") -> Path:
    """A file that was written this many hours ago."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    then = time.time() - hours * 3600
    os.utime(path, (then, then))
    return path


def a_data_file(story: Story, *batch_ids: str) -> bytes:
    """A file as Iceberg writes it for this table: each column has its field id."""
    schema = story.table().schema().as_arrow()
    rows = [{"v": n, "day": 1, "batch_id": i} for n, i in enumerate(batch_ids)]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), sink)
    return sink.getvalue()


def names_of(paths: Any) -> set[str]:
    return {Path(p).name for p in paths}


def check_evidence(story: Story, restatement: str) -> None:
    """As an auditor does: the record is the one that the ledger names, and the storage has nothing of what was erased."""
    found = CliRunner().invoke(cli, ["erasures", "verify", story.full_name, restatement, "--storage"])
    assert found.exit_code == 0, found.output
