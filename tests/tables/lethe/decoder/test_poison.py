"""A file that kills or stalls its decoder is refused by name, in the same words everywhere, and the others are read."""

import io
import json
import os
import random
import signal
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.contract.settings import FileFormat
from lethe.decoder.limits import TOO_COSTLY, Limits
from lethe.decoder.process import Process
from lethe.ingest import buffer_files
from lethe.ingest.buffer_files import FileOutcome, Reader, ReadSettings, fit
from lethe.ingest.buffer_store import BadFile, FileTask
from lethe.ingest.checking import Whole, check_files
from lethe.ingest.json_format import open_json
from lethe.ingest.schema_fit import Fitting, Piece
from lethe.ingest.text_blocks import TextFile

from tests.support import poison
from tests.support.buffer_formats import FORMATS, some_rows, written

COLUMNS = pa.schema(
    [("v", pa.int64()), ("day", pa.int32()), ("name", pa.string()), ("batch_id", pa.string())],
)
ANY_DEPTH = Limits(nesting=10**6)
SHORT = Limits(cpu_seconds=0.5, rows=10**9)
LITTLE = Limits(expanded_bytes=1024**2)
MANY = Limits(rows=10**12, expanded_bytes=10**12)
# By what it is: its format, the file, the limits (None: those that are documented), and what the refusal says.
POISONS: dict[str, tuple[str, Callable[[], bytes], Limits | None, str]] = {
    "deep JSON": ("json", lambda: poison.deep_json(20_000), None, "nests deeper than 100 levels"),
    "JSON that crashes": ("json", lambda: poison.deep_json(20_000), ANY_DEPTH, "it ends the decoder (SIG"),
    "expanding JSON": ("json", lambda: poison.blank_lines(8 * 1024**2), LITTLE, "it expands to at least"),
    "rows of no bytes": ("avro", poison.rows_of_no_bytes, None, "it has at least"),
    "rows of no bytes, endlessly": ("avro", poison.rows_of_no_bytes, SHORT, "of processor time"),
    "a text many times": ("parquet", poison.one_text_many_times, None, "more than 512 MiB of memory"),
    "a text many times, any memory": ("parquet", poison.one_text_many_times, MANY, "more than 512 MiB of memory"),
    "many rows": ("parquet", lambda: poison.many_nulls(12_000_000), Limits(rows_per_byte=10), "it has at least"),
    "many columns": ("parquet", lambda: poison.many_columns(10_001), None, "it has 10001 columns"),
}


def limited(monkeypatch: pytest.MonkeyPatch, limits: Limits | None) -> None:
    if limits is not None:
        monkeypatch.setattr(buffer_files, "limits_here", lambda: limits)


def tasks_of(folder: Path, *contents: bytes, batch: Callable[[int], str] = "B{}".format) -> list[FileTask]:
    tasks = []
    for n, content in enumerate(contents):
        path = folder / f"part-{n}"
        path.write_bytes(content)
        tasks.append(FileTask(batch(n), f"file://{path}", len(content)))
    return tasks


def read(tasks: list[FileTask], format_: str) -> tuple[dict[str, int], dict[str, tuple[str, str]]]:
    """The rows of each batch, and the reason and message of each that is refused."""
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    rows: dict[str, int] = {}
    reader = Reader(COLUMNS, ReadSettings("batch_id", {}, FileFormat(format_)))
    for table in reader.tables(tasks, outcomes):
        for found in table.column("batch_id").value_counts().to_pylist():
            rows[found["values"]] = rows.get(found["values"], 0) + found["counts"]
    assert [uri for _, uri in outcomes] == [t.uri for t in tasks] or len(outcomes) == len(tasks)
    refused = {i: (o.error.reason, o.error.message) for (i, _), o in outcomes.items() if o.error}
    assert {i: o.rows for (i, _), o in outcomes.items() if not o.error and o.rows} == {
        i: n for i, n in rows.items() if i not in refused
    }
    return {i: n for i, n in rows.items() if i not in refused}, refused


def good(format_: str, rows: int = 10) -> bytes:
    return written(format_, some_rows(rows, name="n")) if format_ != "avro" else written(format_, some_rows(rows))


@pytest.mark.parametrize("kind", POISONS)
def test_the_files_beside_it_are_read(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check before the batch is complete says the same about it."""
    format_, content, limits, words = POISONS[kind]
    limited(monkeypatch, limits)
    columns = COLUMNS.remove(2) if format_ == "avro" or "rows" in kind else COLUMNS
    monkeypatch.setattr(f"{__name__}.COLUMNS", columns)
    beside = written(format_, some_rows(10)) if len(columns) == 3 else good(format_)
    tasks = tasks_of(tmp_path, beside, beside, content(), beside, beside)

    rows, refused = read(tasks, format_)
    checked = check_files(columns, tasks[2:3], ReadSettings("batch_id", {}, FileFormat(format_)))

    assert rows == {"B0": 10, "B1": 10, "B3": 10, "B4": 10}
    assert list(refused) == ["B2"]
    reason, message = refused["B2"]
    assert reason == "FileTooCostly"
    assert words in message
    assert checked.refusal is not None
    assert (checked.refusal.reason, checked.refusal.message) == (reason, f"{tasks[2].uri}: {message}")


def test_the_other_files_of_its_batch_are_not_read_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of a thousand such files costs the time of one."""
    limited(monkeypatch, ANY_DEPTH)
    monkeypatch.setattr("lethe.decoder.process.UNITS_AT_ONCE", 1)
    starts: list[int] = []
    original = Process.__init__

    def begin(self: Process, work: Any) -> None:
        starts.append(1)
        original(self, work)

    monkeypatch.setattr(Process, "__init__", begin)
    bad = poison.deep_json(20_000)

    rows, refused = read(tasks_of(tmp_path, *[bad] * 20, good("json"), batch=lambda n: f"B{n // 20}"), "json")

    assert (rows, list(refused)) == ({"B1": 10}, ["B0"])
    assert len(starts) == 3


def test_only_the_columns_of_a_large_file_are_looked_at(tmp_path: Path) -> None:
    large, deep = good("json", 50_000), poison.deep_json(20_000)
    tasks = tasks_of(tmp_path, large, deep, batch=lambda _: "B")
    settings = ReadSettings("batch_id", {}, FileFormat.JSON)

    assert check_files(COLUMNS, tasks[:1], settings, Whole(0, 0)).refusal is None
    checked = check_files(COLUMNS, tasks, settings, Whole(0, 0))

    assert checked.refusal is not None
    assert (checked.refusal.reason, "part-1" in checked.refusal.message) == ("FileTooCostly", True)


@pytest.mark.parametrize("format_", FORMATS)
def test_a_decoder_that_is_killed_loses_and_repeats_no_row(
    format_: FileFormat, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At any moment, also within a file of which some rows were sent."""
    chance = random.Random(format_)
    monkeypatch.setattr("lethe.decoder.process._IDLE_DEATHS_AT_MOST", 1000)
    monkeypatch.setattr(f"{__name__}.COLUMNS", COLUMNS.remove(2))
    original = Process.receive
    messages = 0

    def receive(self: Process, *args: Any) -> Any:
        nonlocal messages
        messages += 1
        if messages == 2 or chance.random() < 0.2:
            with suppress(ProcessLookupError):  # the one that was killed before has not been replaced yet
                os.kill(self._pid, signal.SIGKILL)
        return original(self, *args)

    monkeypatch.setattr(Process, "receive", receive)
    counts = [chance.choice((1, 3, 50, 120_000)) for _ in range(15)]
    tasks = tasks_of(tmp_path, *[written(format_, some_rows(n)) for n in counts])

    rows, refused = read(tasks, format_)

    assert messages > 2
    assert all("SIGKILL" in message for _, message in refused.values())
    assert rows == {f"B{n}": count for n, count in enumerate(counts) if f"B{n}" not in refused}


@pytest.mark.parametrize("error", [UnicodeDecodeError("utf-8", b"x", 0, 1, "secret"), RecursionError("secret")])
def test_an_error_that_nobody_expected_is_about_the_file_too(error: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    tasks = [FileTask("good", "g", 1), FileTask("bad", "b", 1)]
    outcomes = {(t.batch_id, t.uri): FileOutcome() for t in tasks}
    pieces = [Piece(t, pa.table({"v": [n]})) for n, t in enumerate(tasks)]
    fitted = Fitting._fitted

    def fail(self: Fitting, rows: pa.Table, *others: Any) -> pa.Table:
        if rows.column("v")[-1].as_py() == 1:
            raise error
        return fitted(self, rows, *others)

    monkeypatch.setattr(Fitting, "_fitted", fail)

    ((_, table),) = fit(Fitting("batch_id", frozenset(), False, COLUMNS.remove(2).remove(1)), pieces, outcomes)

    assert table.column("v").to_pylist() == [0]
    refusal = outcomes["bad", "b"].error
    assert refusal is not None
    assert (refusal.reason, "secret" in refusal.message) == ("UnreadableFile", False)


# --- nesting ---

VALUES = st.recursive(
    st.none() | st.integers() | st.text('ab"\\[]{}\n', max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text('a"{[\\', max_size=2), inner, max_size=3),
    max_leaves=30,
)


def depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth, value.values()), default=0)
    return 1 + max(map(depth, value), default=0) if isinstance(value, list) else 0


@given(
    st.lists(st.dictionaries(st.text('a"{', max_size=2), VALUES, max_size=3), min_size=1, max_size=6),
    st.integers(1, 5),
    st.sampled_from(["\n", "\r\n", " \n\n"]),
)
def test_the_depth_of_json_is_known_however_it_is_written(rows: list[Any], at_most: int, end: str) -> None:
    """A block of lines with few brackets is not looked at in detail, so one level more is not always refused."""
    content = "".join(json.dumps(r) + end for r in rows).encode()
    try:
        list(open_json(TextFile(io.BytesIO(content), nesting=at_most), pa.schema([])).tables)
        is_deep = False
    except BadFile as e:
        is_deep = e.reason == TOO_COSTLY
    except pa.ArrowInvalid:  # of the values of a column that no table has
        is_deep = False

    deepest = max(map(depth, rows))
    assert is_deep == (deepest > at_most) or deepest == at_most + 1


# --- any bytes ---


@pytest.mark.parametrize("format_", FORMATS)
def test_wrong_bytes_are_refused_or_read_and_the_files_beside_them_are_read(
    format_: FileFormat, tmp_path: Path
) -> None:
    """tests/long does this for minutes."""
    base = written(format_, some_rows(50))
    wrong = [poison.mutated(base, seed) for seed in range(60)]
    columns = COLUMNS.remove(2)
    tasks = tasks_of(tmp_path, base, *wrong, base)
    outcomes: dict[tuple[str, str], FileOutcome] = {}

    tables = list(Reader(columns, ReadSettings("batch_id", {}, format_)).tables(tasks, outcomes))

    assert [outcomes[t.batch_id, t.uri] for t in (tasks[0], tasks[-1])] == [FileOutcome(50)] * 2
    assert {o.error.reason for o in outcomes.values() if o.error} <= {
        "UnreadableFile",
        "SchemaMismatch",
        "FileTooCostly",
        "BatchIdMismatch",
    }
    bad = {i for (i, _), o in outcomes.items() if o.error}
    found = [i for t in tables for i in t.column("batch_id").to_pylist() if i not in bad]
    assert len(found) == sum(o.rows for o in outcomes.values() if not o.error)
