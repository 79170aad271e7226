"""A metadata file whose beginning is known is parsed to exactly what PyIceberg parses it to."""

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from lethe.contract.run import RunPointer
from lethe.iceberg import run_documents
from lethe.iceberg.facts import observe
from lethe.iceberg.metadata_file import CachedMetadata, MetadataCache, read
from pyiceberg.exceptions import ValidationError
from pyiceberg.io import PY_IO_IMPL
from pyiceberg.table import StaticTable
from pyiceberg.table.metadata import TableMetadataUtil

FIELDS = [{"id": 1, "name": "batch_id", "required": False, "type": "string"}]


def snapshot(number: int, **of_summary: str) -> dict[str, Any]:
    return {
        "sequence-number": number,
        "snapshot-id": 1000 + number,
        **({"parent-snapshot-id": 999 + number} if number > 1 else {}),
        "timestamp-ms": 1_700_000_000_000 + number,
        "summary": {"operation": "append", "lethe.ledger": f"file:///t/_tombstones/{number}-root.json", **of_summary},
        "manifest-list": f"file:/t/metadata/snap-{number}.avro",
        "schema-id": 0,
    }


def document(snapshots: list[dict[str, Any]], **others: Any) -> dict[str, Any]:
    newest = snapshots[-1]["snapshot-id"] if snapshots else -1
    schema = {"type": "struct", "schema-id": 0, "fields": FIELDS}
    return {
        "format-version": 2,
        "table-uuid": "9c12d441-03fe-4693-9a96-a0705ddf69c1",
        "location": "file:/t",
        "last-sequence-number": len(snapshots),
        "last-updated-ms": 1_700_000_000_000 + len(snapshots),
        "last-column-id": 1,
        "current-schema-id": 0,
        "schemas": [schema],
        "default-spec-id": 0,
        "partition-specs": [{"spec-id": 0, "fields": []}],
        "last-partition-id": 999,
        "default-sort-order-id": 0,
        "sort-orders": [{"order-id": 0, "fields": []}],
        "properties": {"owner": "lethe"},
        "current-snapshot-id": newest,
        "refs": {"main": {"snapshot-id": newest, "type": "branch"}} if snapshots else {},
        "snapshots": snapshots,
        "statistics": [],
        "snapshot-log": [{"timestamp-ms": s["timestamp-ms"], "snapshot-id": s["snapshot-id"]} for s in snapshots],
        "metadata-log": [],
    } | others


def compact(value: Any) -> str:
    """JSON as Iceberg's Java library writes it."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def followed(before: CachedMetadata, text: str) -> CachedMetadata:
    """The version that follows, which is the same as PyIceberg would parse."""
    found = before.followed_by(text)
    assert found is not None
    whole = TableMetadataUtil.parse_raw(text)
    assert found.metadata == whole
    assert type(found.metadata) is type(whole)
    if whole.format_version < 3:  # PyIceberg does not write version 3
        assert found.metadata.model_dump_json() == whole.model_dump_json()
    return found


def test_a_version_without_new_snapshots_has_its_own_schema_and_properties() -> None:
    known = CachedMetadata.of(compact(document([snapshot(1)])))

    changed = followed(known, compact(document([snapshot(1)], properties={"owner": "another"}, location="file:/moved")))

    assert (changed.metadata.properties, changed.metadata.location) == ({"owner": "another"}, "file:/moved")


@pytest.mark.parametrize(
    "value", ['"snapshots":[', "]", "},{", '\\"snapshots\\":[{', '],"snapshots":[]', "\u2028ä"], ids=repr
)
def test_texts_that_look_like_the_list_do_not_confuse_it(value: str) -> None:
    first = [snapshot(1, note=value), snapshot(2, note=value)]
    known = CachedMetadata.of(compact(document(first, properties={"note": value, value: "x"})))

    found = followed(known, compact(document([*first, snapshot(3, note=value)], properties={value: value})))

    assert found.metadata.snapshots[2].summary is not None
    assert found.metadata.snapshots[2].summary["note"] == value


@pytest.mark.parametrize(
    "now",
    [
        compact(document([snapshot(2), snapshot(3)])),  # the first one expired
        compact(document([snapshot(1)])),
        compact(document([])),
        compact(document([snapshot(1), snapshot(2, note="changed"), snapshot(3)])),
        compact(document([snapshot(2), snapshot(1), snapshot(3)])),
        json.dumps(document([snapshot(1), snapshot(2), snapshot(3)])),  # with blanks
        json.dumps(document([snapshot(1), snapshot(2), snapshot(3)]), indent=2),
        compact({"first": {"snapshots": [snapshot(1), snapshot(2)]}, **document([snapshot(3)])}),
        compact({"first": {"snapshots": [snapshot(1), snapshot(2)]}, **document([])}),
        compact({k: v for k, v in document([]).items() if k != "snapshots"}),
    ],
)
def test_a_version_with_other_snapshots_is_parsed_as_a_whole(now: str) -> None:
    known = CachedMetadata.of(compact(document([snapshot(1), snapshot(2)])))

    assert known.followed_by(now) is None


def test_damaged_text_is_reported_by_pyiceberg(tmp_path: Path) -> None:
    versions, text = MetadataCache(), compact(document([snapshot(1), snapshot(2), snapshot(3)]))
    file = tmp_path / "v1.metadata.json"
    file.write_text(compact(document([snapshot(1), snapshot(2)])))
    read(str(file), {}, versions)
    end = text.index(',{"sequence-number":3')

    missing = document([snapshot(1), snapshot(2)])
    del missing["location"]
    for damaged in (*(text[:n] for n in (0, 1, end - 1, end, end + 1, end + 20, len(text) - 1)), compact(missing)):
        file.write_text(damaged)
        with pytest.raises(ValidationError):
            read(str(file), {}, versions)


@pytest.mark.parametrize("name", ["v{}.metadata.json", "v{}.gz.metadata.json"])
def test_reading_gives_the_table_that_pyiceberg_reads(tmp_path: Path, name: str) -> None:
    versions = MetadataCache()
    for number in (1, 2, 3):
        file = tmp_path / name.format(number)
        content = compact(document([snapshot(n + 1) for n in range(number)])).encode()
        file.write_bytes(gzip.compress(content) if "gz" in name else content)

        table, version = read(file.as_uri(), {"s3.region": "x"}, versions)

        expected = StaticTable.from_metadata(file.as_uri(), {"s3.region": "x"})
        assert table.metadata == expected.metadata
        assert (table.metadata_location, table.name()) == (expected.metadata_location, expected.name())
        own = {k: v for k, v in table.io.properties.items() if k != PY_IO_IMPL}
        assert own == {"s3.region": "x"}, "the properties of the table are not the client's"
        assert observe(table, "batch_id", "t", version.snapshot_of) == observe(expected, "batch_id", "t")


def test_a_snapshot_is_converted_once() -> None:
    known = CachedMetadata.of(compact(document([snapshot(1)])))
    first = known.snapshot_of(known.metadata.snapshots[0])

    later = followed(known, compact(document([snapshot(1), snapshot(2)])))

    assert later.snapshot_of(later.metadata.snapshots[0]) is first


def test_the_tables_that_were_read_last_are_kept() -> None:
    versions = MetadataCache(most=5)
    of_two, of_three = (
        CachedMetadata.of(compact(document([snapshot(n + 1) for n in range(count)]))) for count in (2, 3)
    )
    versions.keep("a", of_two)
    versions.keep("b", of_three)
    assert versions.get("a") is of_two

    versions.keep("a", of_two)  # read again
    versions.keep("c", of_two)

    assert (versions.get("a"), versions.get("b"), versions.get("c")) == (of_two, None, of_two)


@pytest.fixture
def uri(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lite:\n    type: sql\n    uri: sqlite:///{tmp_path}/c.db\n    warehouse: file://{tmp_path}\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return f"{run_documents.folder(f'file://{tmp_path}/t/')}/r.json"


def test_what_was_written_is_read_by_its_pointer_and_nothing_else_is(uri: str) -> None:
    """A later attempt writes its own over it; whoever still holds the old pointer must not take that for the old one."""
    digest = run_documents.write("lite", uri, '{"é": 1}')
    pointer = RunPointer(catalog="lite", uri=uri, sha256=digest)

    assert uri.endswith("/t/_runs/r.json")
    assert run_documents.read(pointer) == '{"é": 1}'.encode()
    run_documents.write("lite", uri, "{}")
    assert run_documents.read(pointer) is None
