"""A file is left out of a search only if its metrics prove that no row of it is looked for."""

from collections import Counter

import pyarrow as pa
from lethe.files.values import ValueKind, Values, ValueType
from lethe.search.candidates import candidates, files_of_batches
from lethe.search.positions import AnyWanted, Wanted, WantedKeys
from pyiceberg.catalog import Catalog
from pyiceberg.io import InputFile
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.table import Table
from pyiceberg.typedef import Properties

from tests.support.tables import new_table, rows


def named(table: Table, *files: list[str | None]) -> Table:
    """Appends with these values of the column `name`, one file each."""
    for n, names in enumerate(files):
        batch = rows(*[f"b{n}"] * len(names))
        table.append(batch.append_column(pa.field("name", pa.string()), pa.array(names, pa.string())))
    return table


def wanted(table: Table, *values: str) -> Wanted:
    field_id = table.schema().find_field("name").field_id
    return Wanted.of(field_id, Values(ValueKind(ValueType.STRING), tuple(sorted(values))))


def searches_of_files(table: Table, **searches: AnyWanted) -> list[set[str]]:
    """By which searches each file is looked at, in the order of their appends."""
    head = table.current_snapshot()
    found = {c.path: set(c.keys) for c in candidates(table, head.snapshot_id if head else None, searches)}
    paths = [t.file.file_path for t in sorted(table.scan().plan_files(), key=lambda t: t.file.lower_bounds[2])]
    return [found.get(p, set()) for p in paths]


SCHEMA = pa.schema([("v", pa.int64()), ("batch_id", pa.string()), ("name", pa.string())])


def test_each_search_reads_the_files_whose_bounds_allow_one_of_its_values(catalog: Catalog) -> None:
    table = named(new_table(catalog, schema=SCHEMA), ["a", "c"], ["d", None, "f"], [None, None])

    found = searches_of_files(table, one=wanted(table, "b", "z"), two=wanted(table, "e", "a"), none=wanted(table, "x"))

    assert found == [{"one", "two"}, {"two"}, set()]


def test_bounds_that_were_cut_off_rule_out_what_they_can(catalog: Catalog) -> None:
    """By default Iceberg keeps sixteen characters of them."""
    long = "x" * 30
    table = named(new_table(catalog, schema=SCHEMA), [f"{long}b", f"{long}d"])

    assert searches_of_files(table, it=wanted(table, f"{long}c")) == [{"it"}]
    assert searches_of_files(table, it=wanted(table, f"{long}e")) == [{"it"}]
    assert searches_of_files(table, it=wanted(table, "w", "y")) == [set()]


def test_files_without_metrics_of_the_column_are_all_read(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA, **{"write.metadata.metrics.column.name": "none"})

    assert searches_of_files(named(table, ["a"], [None]), it=wanted(table, "x")) == [{"it"}, {"it"}]


def test_a_table_without_snapshots_has_no_files(catalog: Catalog) -> None:
    table = new_table(catalog, schema=SCHEMA)

    assert candidates(table, None, {"it": wanted(table, "a")}) == []


def test_a_file_is_read_for_keys_if_each_of_their_columns_allows_one(catalog: Catalog) -> None:
    table = named(new_table(catalog, schema=SCHEMA), ["a", "c"], ["d", "f"], [None, None])
    batch, name = (table.schema().find_field(n).field_id for n in ("batch_id", "name"))

    def keys(*of: tuple[str, str]) -> WantedKeys:
        columns = [pa.array(values) for values in zip(*of, strict=True)]
        return WantedKeys.of(
            [(batch, ValueKind(ValueType.STRING)), (name, ValueKind(ValueType.STRING))],
            pa.table(columns, names=["0", "1"]),
        )

    found = searches_of_files(
        table, one=keys(("b0", "b"), ("b9", "e")), two=keys(("b1", "a"), ("b1", "e"), ("b2", "a"))
    )

    assert found == [{"one"}, {"two"}, set()]


class CountingIO(PyArrowFileIO):
    """Counts the files that it opens, by path."""

    def __init__(self, properties: Properties) -> None:
        super().__init__(properties)
        self.opened = Counter[str]()

    def new_input(self, location: str) -> InputFile:
        self.opened[location] += 1
        return super().new_input(location)


def test_files_of_batches_are_found_by_reading_each_manifest_once(catalog: Catalog) -> None:
    """A file of one batch is known by its bounds. One without bounds may hold any batch."""
    table = new_table(catalog, schema=SCHEMA)
    for ids in (["b0", "b0"], ["b0", "b2"], ["b3", "b3"], ["b1", None], [None, None]):
        batch = rows(*["-"] * len(ids)).set_column(1, pa.field("batch_id", pa.string()), pa.array(ids, pa.string()))
        table.append(batch.append_column(pa.field("name", pa.string()), pa.array(ids, pa.string())))
    field_id, head = table.schema().find_field("batch_id").field_id, table.current_snapshot()
    assert head is not None
    table.io = CountingIO(table.io.properties)

    ids = Values(ValueKind(ValueType.STRING), ("b0", "b1", "b9"))
    found = files_of_batches(table, head.snapshot_id, field_id, ids, lambda _: True)

    assert [(f.lower, f.records) for f in found.whole] == [("b0", 2)]
    assert sorted((bounds.lower, bounds.upper) for _, bounds in found.mixed) == [("b0", "b2"), ("b1", "b1")]
    assert {c.path for c, _ in found.mixed} == {bounds.path for _, bounds in found.mixed}
    assert all(c.bytes_to_search < c.size for c, _ in found.mixed)
    manifests = [m.manifest_path for m in head.manifests(table.io)]
    assert (len(manifests), {path: table.io.opened[path] for path in manifests}) == (5, dict.fromkeys(manifests, 1))
    excluded = files_of_batches(table, head.snapshot_id, field_id, ids, lambda bounds: bounds.lower == "b1")
    assert [bounds.lower for _, bounds in excluded.mixed] == ["b1"]
    assert excluded.whole == found.whole
