"""Tables with columns whose types PyIceberg does not know. An unknown type refuses only what needs it, by name."""

import json
from pathlib import Path
from typing import Any

import lethe
import pyarrow as pa
import pytest
from click.testing import CliRunner
from lethe.base.errors import InputError
from lethe.base.unknown_types import known_types_only
from lethe.cli.main import cli
from lethe.iceberg import catalogs, metadata_file
from lethe.iceberg.facts import observe
from lethe.iceberg.metadata_file import unknown_columns
from lethe.ingest.checking import columns_of
from lethe.ingest.schema_fit import Fits, Misfit, Rules, compare
from lethe.storage.vended import _readable
from pyiceberg.catalog import Catalog
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from requests import Response

from tests.support.tables import SCHEMA, revert, rows, values
from tests.support.unknown_types import add_column, drop_column

NAME = "air.flights"
LATER: Any = {"type": "tensor", "of": "float"}
KINDS = {
    "variant": "variant",
    "geometry": "geometry",
    "geometry(srid:3857)": "geometry(srid:3857)",
    "geography(OGC:CRS84, karney)": "geography(OGC:CRS84, karney)",
    "interval_of_a_later_version": "interval_of_a_later_version",
    "tensor": LATER,
    "list<variant>": {"type": "list", "element-id": 50, "element": "variant", "element-required": False},
    "geography": {
        "type": "struct",
        "fields": [
            {"id": 60, "name": "known", "required": False, "type": "int"},
            {"id": 61, "name": "at", "required": True, "type": "geography"},
        ],
    },
    "blob_of_a_later_version": {
        "type": "map",
        "key-id": 70,
        "key": "string",
        "value-id": 71,
        "value-required": False,
        "value": {
            "type": "struct",
            "fields": [{"id": 72, "name": "x", "required": False, "type": "blob_of_a_later_version"}],
        },
    },
}


def loaded() -> Table:
    return catalogs.load("lite").load_table(NAME)


@pytest.mark.parametrize("name", KINDS)
def test_rows_are_read_without_the_column_and_with_it_the_read_is_refused_by_name(
    table: Table, tmp_path: Path, name: str
) -> None:
    table.append(rows("A", "B"))
    add_column(tmp_path / "c.db", NAME, "shape", KINDS[name])

    assert values(lethe.scan(f"lite.{NAME}", columns=("v", "batch_id"))) == [0, 1]
    with pytest.raises(InputError, match=r"column shape has the type") as refused:
        lethe.scan(f"lite.{NAME}")
    assert refused.value.reason == "UnknownType"
    assert name in refused.value.message


@pytest.mark.parametrize("name", KINDS)
def test_a_filter_on_the_column_is_refused_by_name_and_others_are_not(table: Table, tmp_path: Path, name: str) -> None:
    table.append(rows("A", "B"))
    before = table.current_snapshot()
    assert before is not None
    loaded().append(rows("D", start=2))
    add_column(tmp_path / "c.db", NAME, "shape", KINDS[name])
    start: dict[str, Any] = {"since": before.snapshot_id}
    of_value = "shape.known = 1" if name == "geography" else "shape = 'x'"
    conditions = ("shape is null", "not (v = 1 and shape is not null)", of_value)

    for how in ({}, start):
        assert values(lethe.scan(f"lite.{NAME}", columns=("v", "batch_id"), filter="v > 1", **how)) == [2]
        for condition in conditions:
            with pytest.raises(InputError, match=r"the filter: column shape.* has the type") as refused:
                lethe.scan(f"lite.{NAME}", columns=("v",), filter=condition, **how)
            assert refused.value.reason == "UnknownType"
            assert name in refused.value.message
    for condition in conditions:
        said = CliRunner().invoke(cli, ["read", f"lite.{NAME}", "--columns", "v", "--filter", condition])
        assert said.exit_code == 10
        assert "column shape" in said.output


@pytest.mark.parametrize("name", KINDS)
def test_after_the_column_is_dropped_all_is_well(table: Table, tmp_path: Path, name: str) -> None:
    table.append(rows("A", "B"))
    add_column(tmp_path / "c.db", NAME, "shape", KINDS[name])
    drop_column(tmp_path / "c.db", NAME, "shape")

    found = loaded()

    found.append(rows("D", start=2))
    revert(found, "A")
    assert values(lethe.scan(f"lite.{NAME}")) == [1, 2]
    assert unknown_columns(found.schema()) == {}


def test_the_facts_of_a_table_do_not_need_the_column(table: Table, tmp_path: Path) -> None:
    table.append(rows("A"))
    before = observe(loaded(), "batch_id")
    add_column(tmp_path / "c.db", NAME, "shape", "variant")

    after = observe(loaded(), "batch_id")

    assert (after.uuid, after.head_id, after.batch_field_id) == (before.uuid, before.head_id, before.batch_field_id)
    assert after.columns == ("v", "batch_id", "shape")


def test_a_later_version_of_the_metadata_that_adds_such_a_column_is_read_in_both_ways(
    table: Table, tmp_path: Path
) -> None:
    """Also where only the new part of the file is parsed."""
    table.append(rows("A"))
    io, versions = loaded().io.properties, metadata_file.MetadataCache()
    metadata_file.read(loaded().metadata_location, io, versions)
    add_column(tmp_path / "c.db", NAME, "shape", "geometry(OGC:CRS84)")

    static, _ = metadata_file.read(loaded().metadata_location, io, versions)

    assert unknown_columns(static.schema()) == {"shape": "geometry(OGC:CRS84)"}


def test_an_answer_of_a_rest_catalog_is_readable() -> None:
    metadata = {"schemas": [{"schema-id": 0, "fields": [{"id": 1, "name": "c", "required": False, "type": "variant"}]}]}
    answer = Response()
    answer.status_code = 200
    answer._content = json.dumps({"metadata-location": "x", "metadata": metadata, "config": {"k": "é"}}).encode()

    found = _readable(answer).json()

    (field,) = found["metadata"]["schemas"][0]["fields"]
    assert (field["type"], found["config"]) == ("unknown", {"k": "é"})


def test_a_column_with_a_default_that_pyiceberg_does_not_read_counts_as_one_of_an_unknown_type(
    table: Table, tmp_path: Path
) -> None:
    table.append(rows("A", "B"))
    default = {"initial-default": "2026-03-01T12:00:00.123456789"}
    add_column(tmp_path / "c.db", NAME, "at", "timestamp_ns", **default)

    assert values(lethe.scan(f"lite.{NAME}", columns=("v", "batch_id"))) == [0, 1]
    with pytest.raises(InputError, match="column at has the type timestamp_ns") as refused:
        lethe.scan(f"lite.{NAME}")
    assert refused.value.reason == "UnknownType"


def test_metadata_with_known_types_only_stays_as_it_is_byte_for_byte(table: Table) -> None:
    text = Path(table.metadata_location.removeprefix("file://")).read_text()

    assert known_types_only(text) is text


def test_files_without_the_column_fit_and_files_with_it_are_refused_by_name(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(NAME, SCHEMA)
    add_column(tmp_path / "c.db", NAME, "shape", "variant")
    columns = columns_of(loaded().schema())
    rules = Rules("batch_id", add_columns=True)

    assert compare(pa.schema([("v", pa.int64())]), columns, rules) == Fits()
    found = compare(pa.schema([("v", pa.int64()), ("shape", pa.string())]), columns, rules)
    assert found == Misfit("column shape (variant) is in the file, and Lethe does not write this type")


def test_a_required_column_of_such_a_type_lets_no_file_fit(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(NAME, SCHEMA)
    add_column(tmp_path / "c.db", NAME, "shape", "variant", required=True)
    columns = columns_of(loaded().schema())

    found = compare(pa.schema([("v", pa.int64())]), columns, Rules("batch_id", frozenset({"shape"})))

    assert isinstance(found, Misfit)
    assert "column shape (variant) is missing; the table requires it" in found.message


def test_a_schema_keeps_what_it_knows_when_it_is_sent_as_json(catalog: Catalog, tmp_path: Path) -> None:
    catalog.create_table(NAME, SCHEMA)
    add_column(tmp_path / "c.db", NAME, "shape", "variant")

    sent = Schema.model_validate_json(loaded().schema().model_dump_json())

    assert unknown_columns(sent) == {"shape": "variant"}
