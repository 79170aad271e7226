"""Ledgers that are not what they must be: a read refuses, naming the snapshot and the file, and never shows deleted rows."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lethe
import pyarrow as pa
import pytest
from lethe import ledger_chunks
from lethe.base import names
from lethe.base.errors import InputError, LedgerError
from lethe.ledger import format
from pyiceberg.catalog import Catalog
from pyiceberg.table import Table
from pyiceberg.table.update import SetCurrentSchemaUpdate
from pyiceberg.types import IntegerType, StringType

from tests.support.builders import a_batch, a_tombstone
from tests.support.tables import SCHEMA, catalog_in, head, new_table, revert, rows, tombstone, values

MANY = tuple(f"b-{n:05d}" for n in range(2000))  # enough for a chunk with an index, of several blocks


def with_reverts(table: Table) -> Table:
    """Batches A, B and many others, of which B and the many are taken back."""
    table.append(rows("A", "B", *MANY[-50:]))
    revert(table, "B", *MANY)
    assert values(lethe.scan(table)) == [0]
    return table


@pytest.fixture
def reverted(table: Table) -> Table:
    return with_reverts(table)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Table:
    return with_reverts(new_table(catalog_in(tmp_path_factory.mktemp("whole"))))


@pytest.fixture
def damaged(whole: Table, tmp_path: Path) -> Iterator[Table]:
    """A table whose ledger is whole again afterwards."""
    ledger = ledger_of(whole)
    shutil.copytree(ledger, tmp_path / "kept")
    yield whole
    shutil.rmtree(ledger)
    shutil.copytree(tmp_path / "kept", ledger)


def ledger_of(table: Table) -> Path:
    return Path(table.location().removeprefix("file://"), names.LEDGER_FOLDER)


def the_file(table: Table, kind: str) -> Path:
    (found,) = ledger_of(table).glob(f"*-{kind}")
    return found


def rewritten(path: Path, change: Callable[[dict[str, Any]], None]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def of_another_version(path: Path) -> None:
    rewritten(path, lambda d: d.update({"format-version": 2}))


def of_another_table(path: Path) -> None:
    rewritten(path, lambda d: d.update({"table-uuid": "0-0-0"}))


def without_a_part(path: Path) -> None:
    rewritten(path, lambda d: d["parts"].pop("tombstones"))


def without_tombstones(path: Path) -> None:
    rewritten(path, lambda d: d["parts"].update({"tombstones": []}))


def of_a_list(path: Path) -> None:
    path.write_text("[]")


def of_endless_brackets(path: Path) -> None:
    path.write_text("[" * 100_000)


def of_numbers_beyond_all_limits(path: Path) -> None:
    rewritten(path, lambda d: d["statistics"].update({"tombstones": float("inf")}))


def naming(file: str) -> Callable[[Path], None]:
    def change(path: Path) -> None:
        rewritten(path, lambda d: d["parts"]["tombstones"][0].update({"file": file}))

    return change


def halved(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def gone(path: Path) -> None:
    path.unlink()


def of_other_bytes(path: Path) -> None:
    path.write_bytes(b"\x00garbage" * (path.stat().st_size // 8) + b"\x00" * (path.stat().st_size % 8))


def of_fewer_entries(path: Path) -> None:
    path.write_bytes(format.TOMBSTONES.encode([a_tombstone("B")]).content)


def of_another_schema(path: Path) -> None:
    path.write_bytes(format.BATCHES.encode([a_batch(i) for i in ("B", *MANY)]).content)


OF_A_ROOT = [
    ("root.json", gone, "LedgerMissing"),
    ("root.json", halved, "LedgerUnreadable"),
    ("root.json", emptied, "LedgerUnreadable"),
    ("root.json", of_other_bytes, "LedgerUnreadable"),
    ("root.json", of_a_list, "LedgerUnreadable"),
    ("root.json", of_endless_brackets, "LedgerUnreadable"),
    ("root.json", of_numbers_beyond_all_limits, "LedgerUnreadable"),
    ("root.json", of_another_version, "LedgerTooNew"),
    ("root.json", of_another_table, "LedgerOfAnotherTable"),
    ("root.json", without_a_part, "LedgerUnreadable"),
    ("root.json", without_tombstones, "LedgerUnreadable"),
    ("root.json", naming("../metadata/t.avro"), "LedgerUnreadable"),
    ("root.json", naming("/etc/passwd"), "LedgerUnreadable"),
    ("root.json", naming("file:///etc/passwd"), "LedgerUnreadable"),
    ("root.json", naming(".."), "LedgerUnreadable"),
]
OF_A_PART = [
    ("tombstones.avro", gone, "LedgerMissing"),
    ("tombstones.avro", halved, "LedgerUnreadable"),
    ("tombstones.avro", emptied, "LedgerUnreadable"),
    ("tombstones.avro", of_other_bytes, "LedgerUnreadable"),
    ("tombstones.avro", of_fewer_entries, "LedgerUnreadable"),
    ("tombstones.avro", of_another_schema, "LedgerUnreadable"),
]


@pytest.mark.parametrize(
    ("kind", "damage", "reason", "by_ranges"),
    [*((*case, False) for case in (*OF_A_ROOT, *OF_A_PART)), *((*case, True) for case in OF_A_PART)],
)
def test_a_damaged_ledger_stops_the_read_and_names_the_snapshot_and_the_file(
    damaged: Table,
    kind: str,
    damage: Callable[[Path], None],
    reason: str,
    by_ranges: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if by_ranges:
        monkeypatch.setattr(ledger_chunks, "WHOLE_UP_TO_BYTES", 0)  # as of a chunk that is too large to fetch whole
    path = the_file(damaged, kind)
    damage(path)

    for read in (lambda: lethe.scan(damaged).to_arrow(), lambda: lethe.scan(damaged).count()):
        with pytest.raises(LedgerError) as refused:
            read()
        assert refused.value.reason == reason
        assert f"snapshot {head(damaged)}" in refused.value.message
        assert path.name in refused.value.message
    # A snapshot from before that ledger is none of its business.
    assert len(values(lethe.scan(damaged, snapshot_id=damaged.history()[0].snapshot_id))) == 52


def test_a_large_file_that_ends_between_two_blocks_is_not_taken_for_a_smaller_one(
    reverted: Table, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Read by ranges, the blocks that are cut off would look like blocks without entries."""
    monkeypatch.setattr(ledger_chunks, "WHOLE_UP_TO_BYTES", 0)
    path = the_file(reverted, "tombstones.avro")
    (chunk,) = json.loads(the_file(reverted, "root.json").read_text())["parts"]["tombstones"]
    path.write_bytes(path.read_bytes()[: chunk["header-bytes"]])

    with pytest.raises(LedgerError, match=path.name) as refused:
        lethe.scan(reverted).to_arrow()

    assert refused.value.reason == "LedgerUnreadable"


@pytest.mark.parametrize(
    "pointer",
    [
        "{folder}/../metadata/v1-root.json",
        "{folder}/sub/root.json",
        "/etc/passwd",
        "file:///etc/passwd",
        "s3://elsewhere/_tombstones/root.json",
        "https://elsewhere/_tombstones/root.json",
        "root.json",
        "",
    ],
)
def test_a_pointer_to_another_place_is_not_followed(reverted: Table, pointer: str) -> None:
    """Somebody set the summary key by hand; it must not make us read any file they like."""
    where = pointer.format(folder=f"{reverted.location()}/{names.LEDGER_FOLDER}")
    reverted.append(rows("C"), snapshot_properties={names.LEDGER: where})

    with pytest.raises(LedgerError, match=f"snapshot {head(reverted)}") as refused:
        lethe.scan(reverted).to_arrow()

    assert refused.value.reason == "LedgerOutside"
    assert where in refused.value.message


def remember_column(table: Table) -> None:
    with table.transaction() as change:
        change.set_properties({names.BATCH_COLUMN: str(table.schema().find_field("batch_id").field_id)})


def test_a_renamed_batch_column_is_followed_by_its_field_id(table: Table) -> None:
    table.append(rows("A", "B"))
    remember_column(table)
    before = revert(table, "B")
    with table.update_schema() as change:
        change.rename_column("batch_id", "load_id")
    with table.update_schema() as change:
        change.add_column("batch_id", StringType())

    assert lethe.scan(table).to_arrow().to_pylist() == [{"v": 0, "load_id": "A", "batch_id": None}]
    assert lethe.scan(table, snapshot_id=before).to_arrow().to_pylist() == [{"v": 0, "batch_id": "A"}]
    assert values(lethe.scan(table, columns=("v",))) == [0]


@pytest.mark.parametrize("again", [None, StringType(), IntegerType()], ids=["dropped", "made anew", "another type"])
def test_a_dropped_batch_column_stops_the_read_of_now_and_not_of_then(table: Table, again: Any) -> None:
    """A new column of the old name is none that the tombstones mean: through it all deleted rows would come back."""
    table.append(rows("A", "B"))
    remember_column(table)
    before = revert(table, "B")
    with table.update_schema(allow_incompatible_changes=True) as change:
        change.delete_column("batch_id")
    if again is not None:
        with table.update_schema() as change:
            change.add_column("batch_id", again)

    with pytest.raises(InputError, match=r"air\.flights: .* lacks the batch column") as refused:
        lethe.scan(table)
    assert refused.value.reason == "BatchColumnDropped"
    with pytest.raises(InputError, match="BatchColumnDropped"):
        lethe.scan(table, since=before)
    assert lethe.scan(table, snapshot_id=before).to_arrow().to_pylist() == [{"v": 0, "batch_id": "A"}]

    # As docs/foreign-writers.md says
    with table.transaction() as transaction:
        transaction._apply((SetCurrentSchemaUpdate(schema_id=0),))
    assert lethe.scan(table).to_arrow().to_pylist() == [{"v": 0, "batch_id": "A"}]


def test_a_batch_column_that_is_no_string_is_refused(catalog: Catalog) -> None:
    table = catalog.create_table("air.typed", SCHEMA.set(1, SCHEMA.field(1).with_type(pa.int32())))

    with pytest.raises(InputError, match=r"BatchColumnType: .*batch_id is int, expected string"):
        lethe.scan(table)


def test_a_ledger_with_an_unknown_batch_column_stops_the_read(table: Table) -> None:
    """The property that remembers it was removed, and the column has another name now."""
    table.append(rows("A", "B"))
    revert(table, "B")
    assert tombstone(table, "B").namespace == 2
    with table.update_schema() as change:
        change.rename_column("batch_id", "load_id")

    with pytest.raises(InputError, match="BatchColumnDropped"):
        lethe.scan(table)


def test_a_lost_ledger_is_found_again_by_naming_the_newest_root(table: Table) -> None:
    """As docs/foreign-writers.md says: an expiry took the snapshot that led to it, and no ledger file."""
    table.append(rows("A", "B"))
    revert(table, "B")
    table.append(rows("C", start=2))
    table.maintenance.expire_snapshots().by_ids([s.snapshot_id for s in table.snapshots()[:-1]]).commit()
    assert table.metadata.snapshots[0].parent_snapshot_id is None  # PyIceberg makes a root of it
    with pytest.raises(LedgerError, match=f"snapshot {head(table)} .* it has no parent, although") as refused:
        lethe.scan(table)
    assert refused.value.reason == "LedgerLost"

    folder = Path(table.location().removeprefix("file://"), names.LEDGER_FOLDER)
    newest = max(p.name for p in folder.glob("*-root.json"))
    pointer = f"{table.location()}/{names.LEDGER_FOLDER}/{newest}"
    table.append(table.schema().as_arrow().empty_table(), snapshot_properties={names.LEDGER: pointer})

    assert values(lethe.scan(table)) == [0, 2]


def test_a_catalog_that_shows_one_snapshot_and_no_log_of_metadata_hides_the_ledger(table: Table) -> None:
    """An append by another engine would otherwise be a table that never had a ledger. After an expiry there is a log."""
    table.append(rows("A", "B"))
    revert(table, "B")
    table.append(rows("C", start=2))
    only = table.metadata.snapshots[-1]
    assert only.parent_snapshot_id is not None
    expired = table.metadata.model_copy(update={"snapshots": [only]})
    table.metadata = expired.model_copy(update={"metadata_log": []})

    with pytest.raises(InputError, match="shows only one snapshot of the table, without its parent") as refused:
        lethe.scan(table)
    assert refused.value.reason == "UnsupportedCatalog"

    table.metadata = expired
    with pytest.raises(LedgerError, match="LedgerLost"):
        lethe.scan(table)
