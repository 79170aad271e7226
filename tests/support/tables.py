"""Tables on SQLite and local files without Spark: rows, ledger commits, and which files a read opens."""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import lethe
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from lethe import ledger_store
from lethe.iceberg.facts import TableFacts, observe
from lethe.ledger.ledger import BatchEntry, Delta
from lethe.ledger.lineage import summary
from lethe.ledger.tombstone import META_PARTITIONS, Tombstone
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.io.pyarrow import (
    _dataframe_to_data_files,
    compute_statistics_plan,
    data_file_statistics_from_parquet_metadata,
    parquet_path_to_id_mapping,
)
from pyiceberg.manifest import (
    DataFile,
    DataFileContent,
    FileFormat,
    ManifestContent,
    ManifestEntry,
    ManifestEntryStatus,
    ManifestFile,
    ManifestWriterV2,
)
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Operation
from pyiceberg.table.update.snapshot import _FastAppendFiles
from pyiceberg.typedef import Record

from tests.support.builders import RUN, a_tombstone

SCHEMA = pa.schema([("v", pa.int64()), ("batch_id", pa.string())])


def rows(*batches: str | None, start: int = 0) -> pa.Table:
    return pa.table({"v": range(start, start + len(batches)), "batch_id": list(batches)}, SCHEMA)


def catalog_in(home: Path, name: str = "lite", **properties: str) -> Catalog:
    """A catalog with the namespace `air`, of files in a folder. Who has that as PYICEBERG_HOME finds it, too.

    Args:
        properties: What else its configuration says, such as where a buffer is.
    """
    home.mkdir(exist_ok=True)
    of = {"type": "sql", "uri": f"sqlite:///{home}/c.db", "warehouse": f"file://{home}/wh", **properties}
    (home / ".pyiceberg.yaml").write_text(yaml.safe_dump({"catalog": {name: of}}))
    made = load_catalog(name, **of)
    made.create_namespace("air")
    return made


def new_table(catalog: Catalog, name: str = "air.flights", schema: pa.Schema = SCHEMA, **properties: str) -> Table:
    """An empty one that Lethe can work on."""
    wanted = {"write.metadata.metrics.column.batch_id": "full", "format-version": "2", **properties}
    return catalog.create_table(name, schema, properties=wanted)


def partitioned(catalog: Catalog) -> Table:
    schema = SCHEMA.append(pa.field("day", pa.int32()))
    table = new_table(catalog, "air.by_day", schema)
    with table.update_spec() as spec:
        spec.add_identity("day")
    return table


def in_days(*batches: str, day: int, start: int = 0) -> pa.Table:
    return rows(*batches, start=start).append_column(
        pa.field("day", pa.int32()), pa.array([day] * len(batches), pa.int32())
    )


def revert(table: Table, *ids: str, partitions: Sequence[str] = ()) -> int:
    """A ledger commit without Spark: a snapshot of a summary and no rows. Its id."""
    meta = {META_PARTITIONS: "\n".join(partitions)} if partitions else {}
    commit_delta(table, add_tombstones=tuple(tombstone(table, i, meta) for i in ids))
    return head(table)


class _DeleteManifest(ManifestWriterV2):
    """PyIceberg itself writes only manifests of data files."""

    def content(self) -> ManifestContent:
        return ManifestContent.DELETES

    @property
    def _meta(self) -> dict[str, str]:
        return {**super()._meta, "content": "deletes"}


class _WithManifests(_FastAppendFiles):
    """A commit with further manifests."""

    further: tuple[ManifestFile, ...] = ()

    def _existing_manifests(self) -> list[ManifestFile]:
        return [*super()._existing_manifests(), *self.further]


def delete_by_equality(table: Table, values: pa.Table, *columns: str) -> None:
    """Another engine deletes the rows that have the values of one row in these columns. Its file has all columns of `values`."""
    table.refresh()
    schema, folder = table.schema(), Path(table.location().removeprefix("file://"))
    ids = {name: schema.find_field(name).field_id for name in values.column_names}
    fields = [f.with_metadata({"PARQUET:field_id": str(ids[f.name])}) for f in values.schema]
    path, manifest = folder / "data" / "deletes.parquet", folder / "metadata" / "deletes.avro"
    pq.write_table(values.cast(pa.schema(fields)), path)
    found = data_file_statistics_from_parquet_metadata(
        pq.read_metadata(path), compute_statistics_plan(schema, {}), parquet_path_to_id_mapping(schema)
    ).to_serialized_dict()
    file = DataFile.from_args(
        content=DataFileContent.EQUALITY_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=Record(),
        file_size_in_bytes=path.stat().st_size,
        equality_ids=[ids[name] for name in columns],
        **found,
    )
    _commit_deletes(table, file, manifest)


def delete_by_position(table: Table, positions: Mapping[str, Sequence[int]], partition: Record) -> None:
    """Another engine deletes rows of data files of one partition, in one file. Its manifest does not name the data files."""
    table.refresh()
    folder = Path(table.location().removeprefix("file://"))
    path, manifest = folder / "data" / "positions.parquet", folder / "metadata" / "positions.avro"
    deleted = [(file, n) for file in sorted(positions) for n in sorted(positions[file])]
    pq.write_table(pa.table({"file_path": [f for f, _ in deleted], "pos": [n for _, n in deleted]}), path)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=f"file://{path}",
        file_format=FileFormat.PARQUET,
        partition=partition,
        record_count=len(deleted),
        file_size_in_bytes=path.stat().st_size,
    )
    _commit_deletes(table, file, manifest)


def _commit_deletes(table: Table, file: DataFile, manifest: Path) -> None:
    with table.transaction() as change:
        commit = _WithManifests(Operation.DELETE, change, table.io)
        output = table.io.new_output(f"file://{manifest}")
        with _DeleteManifest(table.spec(), table.schema(), output, commit.snapshot_id, "deflate") as writer:
            entry = ManifestEntry.from_args(
                status=ManifestEntryStatus.ADDED, snapshot_id=commit.snapshot_id, data_file=file
            )
            writer.add_entry(entry)
        commit.further = (writer.to_manifest_file(),)
        commit.commit()


def undo(table: Table, *ids: str) -> int:
    commit_delta(table, remove_tombstones=frozenset(tombstone(table, i).key for i in ids))
    return head(table)


def vacuum(table: Table, *ids: str, files_at_most: int = 1000, forget: bool = True) -> int:
    """Rewrite files without the rows of these batches, as a vacuum does, and `forget` their tombstones."""
    found = [t for t in table.scan().plan_files() if set(ids) & set(batches_in(t.file.file_path))][:files_at_most]
    survivors: list[pa.Table] = []
    for task in found:
        content = pq.read_table(task.file.file_path.removeprefix("file://"), partitioning=None).select(SCHEMA.names)
        survivors.append(content.filter(pc.invert(pc.is_in(content["batch_id"], pa.array(ids)))).cast(SCHEMA))
    applied = [tombstone(table, i) for i in ids]
    delta = Delta(RUN, remove_tombstones=frozenset(t.key for t in applied if forget))
    with (
        table.transaction() as transaction,
        transaction.update_snapshot(snapshot_properties=summary_of(table, delta, applied)).overwrite() as overwrite,
    ):
        for task in found:
            overwrite.delete_data_file(task.file)
        for kept in survivors:
            for file in _dataframe_to_data_files(table.metadata, kept, table.io) if kept.num_rows else ():
                overwrite.append_data_file(file)
    return head(table)


def commit(table: Table, *batches: BatchEntry, forget: Sequence[str] = ()) -> None:
    """A ledger commit that only says something of batches."""
    table.refresh()
    commit_delta(table, set_batches=batches, forget_batches=frozenset(forget))


def commit_delta(table: Table, run: str = RUN, kind: str = "Restatement", **delta: Any) -> None:
    """A ledger commit: a snapshot of a summary and no rows."""
    keys = summary_of(table, Delta(run, **delta), kind=kind)
    table.append(table.schema().as_arrow().empty_table(), snapshot_properties=keys)


def named_files(table: Table) -> set[str]:
    """The data files that some retained snapshot of a table names."""
    manifests = {m.manifest_path: m for s in table.snapshots() for m in s.manifests(table.io)}.values()
    return {e.data_file.file_path for m in manifests for e in m.fetch_manifest_entry(table.io)}


def summary_of(
    table: Table, delta: Delta, vacuumed: Collection[Tombstone] | None = None, kind: str = "Restatement"
) -> dict[str, str]:
    """The summary of a commit whose ledger is written already."""
    facts: TableFacts = observe(table, "batch_id")
    base = ledger_store.load(table.io, facts)
    return summary(ledger_store.write(table.io, facts, base, delta, vacuumed=vacuumed), delta.run, kind)


def tombstone(table: Table, id: str, meta: Mapping[str, str] | None = None) -> Tombstone:
    field_id = observe(table, "batch_id").batch_field_id
    assert field_id is not None
    return a_tombstone(id, namespace=field_id, meta=meta)


def head(table: Table) -> int:
    snapshot = table.current_snapshot()
    assert snapshot is not None
    return snapshot.snapshot_id


def batches_in(path: str) -> list[str | None]:
    found: list[str | None] = pq.read_table(path.removeprefix("file://"), partitioning=None)["batch_id"].to_pylist()
    return found


def values(scan: lethe.Scan) -> list[int]:
    found = scan.to_arrow()
    assert scan.count() == found.num_rows
    return sorted(found["v"].to_pylist())


def kinds(opened: list[str]) -> dict[str, int]:
    """How many ledger roots, other ledger files and data files were opened."""
    return {
        "roots": sum(p.endswith("-root.json") for p in opened),
        "chunks": sum("/_tombstones/" in p and p.endswith(".avro") for p in opened),
        "data": sum(p.endswith(".parquet") for p in opened),
    }
