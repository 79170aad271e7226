"""Change data parted: what is added, what goes by its keys, and what is refused without telling a value."""

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lethe.contract.settings import FileFormat
from lethe.ingest import change_rows
from lethe.ingest.buffer_files import FileOutcome, Reader, ReadSettings
from lethe.ingest.buffer_store import BadFile, FileTask
from lethe.ingest.change_rows import Keyed, decoded, encoded
from lethe.ingest.schema_fit import Fitting
from pyspark.sql.pandas.types import to_arrow_schema

from tests.support.buffer_formats import FORMATS, SCHEMA, some_rows, written

TABLE = pa.schema([("v", pa.int64()), ("name", pa.string()), ("batch_id", pa.string())])
FITTING = Fitting("batch_id", frozenset({"name"}), False, TABLE)
BY_V = Keyed(("v",), "op")


def rows(*of: tuple[Any, ...], op: pa.DataType | None = None) -> pa.Table:
    v, name, ops = zip(*of, strict=True)
    return pa.table({"v": pa.array(v, pa.int64()), "name": name, "op": pa.array(ops, op or pa.string())})


def keys(*v: int, **more: list[Any]) -> bytes:
    return encoded(pa.table({"v": pa.array(v, pa.int64()), **more}))


@pytest.mark.parametrize("op", [pa.string(), pa.large_string(), pa.dictionary(pa.int8(), pa.string())], ids=str)
def test_rows_to_delete_are_not_added_and_the_keys_of_all_rows_are_returned(op: pa.DataType) -> None:
    """What is only deleted need not hold what the table requires."""
    changes = rows((1, "a", "U"), (2, None, "D"), (3, "c", "I"), (4, "d", None), (5, "e", ""), op=op)

    added, found = BY_V.parted(changes, FITTING)

    assert added.column_names == ["v", "name"]
    assert added.column("v").to_pylist() == [1, 3, 4, 5]
    assert decoded(encoded(found)).column("v").to_pylist() == [1, 2, 3, 4, 5]


def test_without_such_a_column_all_rows_are_added() -> None:
    changes = rows((1, "a", "D"))

    added, found = Keyed(("name", "v")).parted(changes, FITTING)

    assert (added, found.to_pylist()) == (changes, [{"name": "a", "v": 1}])


def test_an_operation_column_of_nulls_adds_all_rows() -> None:
    """As a producer writes it that has no deletes today."""
    changes = rows((1, "a", None), op=pa.null())

    assert BY_V.without_op(changes.schema).names == ["v", "name"]
    assert BY_V.parted(changes, FITTING)[0].num_rows == 1


def test_keys_are_returned_in_the_types_of_the_table() -> None:
    changes = pa.table({"v": pa.array([1], pa.int16()), "name": ["a"], "op": ["D"]})

    assert BY_V.parted(changes, FITTING)[1].schema.field("v").type == pa.int64()


@pytest.mark.parametrize(
    ("changes", "reason", "text"),
    [
        (rows((None, "hush", "D")), "NullInKey", "column v, one of spec.replacement.keyColumns, holds nulls"),
        (rows((1, "hush", "hush")), "UnknownOperation", "column op holds values other than U, I, D and null"),
        (rows((1, "hush", "u")), "UnknownOperation", "column op holds"),
        (
            pa.table({"v": ["hush"], "name": ["a"], "op": ["U"]}),
            "SchemaMismatch",
            "column v is string and holds a value that cannot be converted to int64",
        ),
    ],
)
def test_rows_with_unusable_keys_or_operations_are_refused_by_the_column(
    changes: pa.Table, reason: str, text: str
) -> None:
    with pytest.raises(BadFile) as refused:
        BY_V.parted(changes, FITTING)

    assert refused.value.reason == reason
    assert text in refused.value.message
    assert "hush" not in refused.value.message


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            pa.schema([("name", pa.string()), ("op", pa.string())]),
            "column v, one of spec.replacement.keyColumns, is missing",
        ),
        (pa.schema([("v", pa.int64())]), "column op, spec.replacement.opColumn, must be in the file exactly once"),
        (
            pa.schema([("v", pa.int64()), ("op", pa.int8())]),
            "column op, spec.replacement.opColumn, is int8, expected string",
        ),
    ],
)
def test_files_without_the_columns_are_refused(file: pa.Schema, text: str) -> None:
    with pytest.raises(BadFile) as refused:
        BY_V.without_op(file)

    assert (refused.value.reason, refused.value.message) == ("SchemaMismatch", text)


def test_text_formats_read_the_operation_column_as_a_string() -> None:
    assert BY_V.to_read(TABLE).field("op").type == pa.string()
    assert Keyed(("v",)).to_read(TABLE) == TABLE


def test_keys_of_several_files_are_one_set() -> None:
    found = BY_V.judged({"b": [keys(3)], "a": [keys(1), keys(2)], "c": [keys()]})

    assert isinstance(found, pa.Table)
    assert found.to_pydict() == {"v": [1, 2, 3]}


def test_a_key_in_two_rows_is_refused_with_a_file_that_it_is_in() -> None:
    """Both values have to be the same, in one file or in two."""
    by_both = Keyed(("v", "name"))
    fine = {"a": [keys(1, 1, name=["x", "y"])], "b": [keys(2, name=["x"])]}

    assert isinstance(by_both.judged(fine), pa.Table)
    refused = by_both.judged(fine | {"c": [keys(77, 1, name=["x", "y"])]})

    assert isinstance(refused, tuple)
    uri, bad = refused
    assert (uri, bad.reason) == ("c", "DuplicateKey")
    assert bad.message.startswith("1 keys (v, name) are in several rows of the replacement, one of them in this file")


def test_more_keys_than_a_worker_can_hold_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_rows, "KEYS_AT_MOST", 2)

    refused = BY_V.judged({"a": [keys(1, 2, 3)]})

    assert isinstance(refused, tuple)
    assert (refused[1].reason, "at least 3 rows" in refused[1].message) == ("TooManyKeys", True)


@pytest.mark.parametrize("format_name", FORMATS)
def test_files_of_every_format_are_read_so_and_other_batches_as_ever(tmp_path: Path, format_name: str) -> None:
    """Beside them in one task. A key that is null keeps out its own batch."""
    plain = some_rows(2)
    changes = some_rows(4).append_column("op", pa.array(["U", "D", None, "I"]))
    bad = pa.table({"v": pa.array([1, None]), "day": pa.array([1, 1], pa.int32()), "op": ["D", "D"]})
    tasks = []
    for batch_id, rows in (("A", plain), ("B", changes), ("C", bad)):
        file = tmp_path / batch_id
        file.write_bytes(written(format_name, rows))
        tasks.append(FileTask(batch_id, f"file://{file}", file.stat().st_size))
    collected: dict[tuple[str, str], FileOutcome] = {}
    keyed = dict.fromkeys("BC", Keyed(("v",), "op"))

    reader = Reader(to_arrow_schema(SCHEMA), ReadSettings("batch_id", {}, FileFormat(format_name), keyed=keyed))
    found = [r for t in reader.tables(tasks, collected) for r in t.to_pylist()]

    v = some_rows(4).column("v").to_pylist()
    assert sorted((r["batch_id"], r["v"]) for r in found) == [
        *(("A", i) for i in v[:2]),
        *(("B", i) for i in (v[0], v[2], v[3])),
    ]
    outcomes = {batch: t for (batch, _), t in collected.items()}
    assert [outcomes[b].rows for b in "ABC"] == [2, 3, 0]
    assert [k for t in outcomes["B"].keys for k in decoded(t).column("v").to_pylist()] == v
    assert outcomes["A"].keys == ()
    error = outcomes["C"].error
    assert error is not None
    assert error.reason == "NullInKey"
