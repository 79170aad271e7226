"""Checks of rows are applied in decoders: counted for each file, also if a decoder dies, and keys are compared by batch."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lethe.contract.checks import CheckSpec
from lethe.contract.settings import FileFormat
from lethe.ingest import checks
from lethe.ingest.buffer_files import FileOutcome, Reader, ReadSettings
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.check_conditions import checks_of
from lethe.ingest.checking import Checked, check_files
from lethe.ingest.checks import FailedRows
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.support import poison
from tests.support.buffer_formats import written

SCHEMA = Schema(
    NestedField(1, "v", LongType()), NestedField(2, "name", StringType()), NestedField(3, "batch_id", StringType())
)
COLUMNS = pa.schema([("v", pa.int64()), ("name", pa.string()), ("batch_id", pa.string())])
SPECS = [
    CheckSpec.model_validate(c)
    for c in (
        {"name": "small", "condition": "v < 100"},
        {"name": "named", "notNull": ["name"], "onFailure": "Hold"},
        {"name": "once", "unique": ["v"]},
    )
]
SMALL, NAMED, ONCE = range(3)
CHECKS = checks_of(SPECS, SCHEMA, COLUMNS)


def content(*values: int | None, name: str | None = "n", format_: str = "parquet") -> bytes:
    return written(format_, pa.Table.from_pylist([{"v": v, "name": name} for v in values], COLUMNS.remove(2)))


def tasks_of(folder: Path, **batches: list[bytes]) -> list[FileTask]:
    """The files of batches, named by the batch and a number."""
    tasks = []
    for batch_id, contents in batches.items():
        for n, data in enumerate(contents):
            path = folder / f"{batch_id}{n}"
            path.write_bytes(data)
            tasks.append(FileTask(batch_id, f"file://{path}", len(data)))
    return tasks


def settings(format_: str = "parquet") -> ReadSettings:
    return ReadSettings("batch_id", {}, FileFormat(format_), checks=CHECKS)


def failed(tasks: list[FileTask], rows: bool = True, **more: Any) -> dict[str, dict[int, FailedRows]]:
    """What fails in each file, by its name."""
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    tables = list(Reader(COLUMNS, settings(**more)).tables(tasks, outcomes, rows=rows))
    assert sum(t.num_rows for t in tables) == (sum(o.rows for o in outcomes.values()) if rows else 0)
    return {uri.rpartition("/")[2]: dict(o.failed) for (_, uri), o in outcomes.items() if o.failed}


@pytest.mark.parametrize("rows", [True, False], ids=["rows are wanted", "only the outcomes"])
def test_failing_rows_are_counted_by_file_and_keys_are_compared_in_the_whole_batch(tmp_path: Path, rows: bool) -> None:
    tasks = tasks_of(
        tmp_path,
        A=[content(1, 200, 3), content(300, 3, 1)],
        B=[content(1, 2, name=None)],
        C=[content(1, 2)],
        D=[content()],
    )

    assert failed(tasks, rows) == {
        "A0": {SMALL: FailedRows(1, (1,))},
        "A1": {SMALL: FailedRows(1, (0,)), ONCE: FailedRows(2, (1, 2))},
        "B0": {NAMED: FailedRows(2, (0, 1))},
    }


@pytest.mark.parametrize("format_", ["json", "csv"])
def test_files_of_other_formats_that_are_read_together_too(tmp_path: Path, format_: str) -> None:
    tasks = tasks_of(tmp_path, A=[content(1, 200, format_=format_), content(1, format_=format_)])

    assert failed(tasks, format_=format_) == {"A0": {SMALL: FailedRows(1, (1,))}, "A1": {ONCE: FailedRows(1, (0,))}}


def test_rows_of_a_file_that_is_read_in_pieces_have_their_numbers_in_the_file(tmp_path: Path) -> None:
    count = 200_000  # several pieces
    values = [n % 50_000 - 50_000 for n in range(count - 1)] + [100]

    found = failed(tasks_of(tmp_path, A=[content(*values)]))["A0"]

    assert found[SMALL] == FailedRows(1, (count - 1,))
    assert found[ONCE] == FailedRows(count - 1 - 50_000, (50_000, 50_001, 50_002, 50_003, 50_004))


def test_rows_are_counted_once_although_decoders_die_beside_them(tmp_path: Path) -> None:
    deep = poison.deep_json(20_000)
    good = [content(*range(99, 103), format_="json")]

    found = failed(tasks_of(tmp_path, A=good, B=[deep], C=good), format_="json")

    assert found == {name: {SMALL: FailedRows(3, (1, 2, 3))} for name in ("A0", "C0")}


def test_more_keys_than_can_be_compared_are_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(checks, "KEY_BYTES_AT_MOST", 100)
    tasks = tasks_of(tmp_path, A=[content(*range(20)), content(*range(20))])

    refusal = check_files(COLUMNS, tasks, settings()).refusal

    assert refusal is not None
    assert (refusal.reason, "check once (unique): its columns take more than" in refusal.message) == (
        "CheckTooCostly",
        True,
    )


def checked(folder: Path, data: bytes) -> Checked:
    return check_files(COLUMNS, tasks_of(folder, A=[data]), settings())


def test_a_check_before_the_batch_is_complete_says_what_a_consolidation_would_do(tmp_path: Path) -> None:
    good, refused, held = (checked(tmp_path, c) for c in (content(1), content(1, 1), content(1, name=None)))

    assert good == Checked(1, None)
    assert refused.refusal is not None
    assert refused.refusal.message == f"check once (unique): 1 of 2 rows fail, first row 1 of file://{tmp_path}/A0"
    assert held.hold is not None
    assert (held.rows, held.refusal, held.hold.reason) == (1, None, "CheckFailed")
