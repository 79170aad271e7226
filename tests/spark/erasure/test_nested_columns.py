"""Fields of structs, and of structs in lists, name records, keys, partitions and rows as columns do."""

import json
from collections import Counter
from collections.abc import Callable
from urllib.parse import unquote_plus

import lethe
import lethe_spark
import pytest
from click.testing import CliRunner
from lethe.base.errors import InputError
from lethe.cli.main import cli
from lethe.contract.settings import Deletes
from lethe.files.increment import SnapshotFiles
from lethe.files.values import ValueKind, Values, ValueType
from lethe.iceberg.snapshot_files import SnapshotView
from lethe.search.candidates import candidates
from lethe.search.positions import SearchedFile, Wanted, find
from pyspark.sql import SparkSession

from tests.spark.parameters import some, tuples
from tests.spark.support.built_once import built_once
from tests.spark.support.erases import but, row, table_folder
from tests.spark.support.erasures import DUE, check_closed, the_outcome
from tests.spark.support.every_object import objects_with, of_folder
from tests.spark.support.story import of_arrow, of_batches, of_spark, rehearsal
from tests.spark.support.trips import Trips, customer, passenger, ticket
from tests.support.lake import Lake

Make = Callable[..., Trips]
GONE, OTHER, NOBODY, KEPT = row("B", 1), row("D", 2), row("A", 0), row("A", 1)
"""The first two are of different days; the third one has neither a customer nor passengers."""


@pytest.fixture
def make(spark: SparkSession, lake: Lake) -> Make:
    """Batches A, B and D are in a table of this format version."""

    @built_once
    def begin(version: int, partition_by: tuple[str, ...] = ("day",), **properties: str) -> Trips:
        return Trips.begin(spark, lake, partition_by, format_version=version, properties=properties).filled()

    return begin


COLUMNS = {"customer.email": customer, "passengers.element.email": passenger, "ticket.id": ticket}
# With whole bounds in manifests, and a Bloom filter, for which Spark writes the files.
HOLDING = {
    "write.metadata.metrics.default": "full",
    "write.parquet.bloom-filter-enabled.column.customer.email": "true",
}


@pytest.mark.parametrize(
    ("column", "version", "deletes"),
    tuples(
        [(c, v, d) for c in COLUMNS for v in (2, 3) for d in (Deletes.AUTO, Deletes.LEDGER)],
        ("customer.email", 2, Deletes.LEDGER),
        ("customer.email", 3, Deletes.AUTO),
        ("passengers.element.email", 3, Deletes.LEDGER),
        ("passengers.element.email", 2, Deletes.AUTO),
        ("ticket.id", 3, Deletes.AUTO),
    ),
)
def test_an_erase_by_a_field_ends_with_its_bytes_gone(make: Make, column: str, version: int, deletes: Deletes) -> None:
    """The rows are hidden at once. When the erasure is verified, no object of the table holds a value."""
    story, value = make(version, **HOLDING), COLUMNS[column]
    erase = story.an_erase(value(GONE[1]), value(OTHER[1]), "nobody", column=column, evict_by_seconds=DUE)
    erased = [text(v) for _, v, _ in (GONE, OTHER) for text in COLUMNS.values()]
    assert objects_with(of_folder(table_folder(story)), *erased) != []

    (result,) = story.run(story.restatement(erase, deletes=deletes)).requests

    assert (result.succeeded, result.rows_erased) == (True, 2)
    assert story.physical() == but(GONE, OTHER)
    story.check_reads(but(GONE, OTHER))
    assert story.obligations() == [("ns/erase/0", story.field_id(column))]
    check_closed(story, story.vacuum())
    assert objects_with(of_folder(table_folder(story)), *erased) == []
    assert story.physical() == but(GONE, OTHER)
    assert problems(story, value(GONE[1]), value(OTHER[1])) == []
    assert problems(story, value(KEPT[1])) == ["ValueIsThere"]


def problems(story: Trips, *values: str) -> list[str]:
    """What an auditor finds who searches the storage for values."""
    command = ["erasures", "verify", story.full_name, "ns/erase/0", "--storage", "--values", "-", "--json"]
    found = json.loads(CliRunner().invoke(cli, command, input="".join(f"{v}\n" for v in values)).stdout)
    return [problem["code"] for problem in found["problems"]]


def test_a_field_keeps_its_rows_findable_under_another_name(make: Make) -> None:
    """Fields are found by their ids, in files from before the change as well."""
    story = make(3)
    story.sql("ALTER TABLE {t} RENAME COLUMN customer.email TO address")
    story.sql("ALTER TABLE {t} ADD COLUMN customer.email string")

    old = story.restate(story.an_erase(customer(GONE[1]), name="old", column="customer.email"))
    new = story.restate(story.an_erase(customer(GONE[1]), name="new", column="customer.address"))

    assert (old.rows_erased, new.rows_erased) == (0, 1)
    story.check_reads(but(GONE))


REFUSED = {
    "customer.emial": ("ColumnNotFound", "has no such column; the nearest names are customer.email"),
    "passengers.email": ("ColumnNotFound", "has no such column; the nearest names are passengers.element.email"),
    "passengers": ("ColumnNotSearchable", "which is list<struct"),
}


def test_what_is_no_field_is_refused_with_what_was_meant(make: Make) -> None:
    story = make(3)

    results = story.restate_all(*(story.an_erase("x", name=c.replace(".", "-"), column=c) for c in REFUSED)).requests

    assert [r.reason for r in results] == [reason for reason, _ in REFUSED.values()]
    for result, (column, (_, text)) in zip(results, REFUSED.items(), strict=True):
        assert f"spec.rows.column names {column}, " in result.message
        assert text in result.message
        assert result.message.endswith("Nothing was erased.")


@pytest.mark.parametrize("version", [2, 3])
def test_a_replay_replaces_rows_by_a_key_in_a_struct(make: Make, version: int) -> None:
    story = make(version)

    result = story.restate(story.a_replay_by(("customer.email", "ticket.id"), GONE, OTHER, ("new", 7, 1)))

    assert (result.succeeded, result.rows_erased, result.rows_added) == (True, 2, 3), result.message
    wanted = but(GONE, OTHER) + Counter([("C1", *GONE[1:]), ("C1", *OTHER[1:]), ("C1", 7, 1)])
    assert story.physical() == wanted
    story.check_reads(wanted)


def test_a_key_in_a_list_or_in_a_null_struct_is_refused(make: Make) -> None:
    story = make(3)

    by_list = story.a_replay_by(("passengers.element.email",), GONE)
    of_list = story.restate(by_list)
    null = story.restate(story.a_replay_by(("customer.email",), NOBODY, by="C2"))
    (planned,) = story.run(rehearsal(story.restatement(by_list))).requests

    assert (of_list.reason, null.reason) == ("ColumnNotSearchable", "NullInKey")
    assert planned.message == of_list.message
    assert (
        "names passengers.element.email, of which a row has several values because it is in a list" in of_list.message
    )
    assert "column customer.email, one of spec.replacement.keyColumns, holds nulls" in null.message
    story.check_reads(of_batches("A", "B", "D"))


@pytest.mark.parametrize("version", some([2, 3], 3))
def test_a_table_that_is_partitioned_by_a_field_is_consolidated_read_and_purged(make: Make, version: int) -> None:
    """Its files have one value of it each, and a filter opens only those that it needs."""
    story = make(version, ("customer.country", "bucket(2, `ticket.id`)"))
    story.sql("ALTER TABLE {t} WRITE ORDERED BY batch_id, customer.email")
    story.filled("E")
    table = story.table()
    assert [table.schema().find_column_name(f.source_id) for f in table.spec().fields] == [
        "customer.country",
        "ticket.id",
    ]
    countries = [f.file.partition[0] for f in table.scan().plan_files()]
    assert set(countries) == {"DE", "FR", None}
    french = SnapshotView.on(table, story.field_id("batch_id"), filter="customer.country = 'FR'")
    planned = french.files(SnapshotFiles.LIVE, story.head().snapshot_id)
    assert {f.data_file.partition[0] for f in planned} == {"FR"}

    story.revert("D")
    erased = story.restate(story.an_erase(customer(GONE[1]), column="customer.email", evict_by_seconds=DUE))
    result = story.vacuum()

    assert erased.rows_erased == 1
    assert the_outcome(result).verified_time is not None, the_outcome(result).blocked_by
    assert objects_with(of_folder(table_folder(story)), customer(GONE[1])) == []
    assert story.physical() == but(GONE, batches=("A", "B", "E"))
    story.check_reads()


def test_the_value_of_a_partition_by_a_field_goes_from_paths_and_manifests(make: Make) -> None:
    """What the ledger remembers of partitions stays."""
    story = make(3, ("customer.email",))
    assert any(customer(GONE[1]) in unquote_plus(path) for path in story.files())

    story.restate(story.an_erase(customer(GONE[1]), column="customer.email", evict_by_seconds=DUE))
    result = story.vacuum()

    assert the_outcome(result).verified_time is not None, the_outcome(result).blocked_by
    found = objects_with(of_folder(table_folder(story)), customer(GONE[1]))
    assert [f for f in found if not f.startswith("_tombstones/")] == []
    assert story.physical() == but(GONE)


def test_a_partition_by_a_field_in_a_list_is_refused(spark: SparkSession, lake: Lake) -> None:
    refused = {
        "passengers.element.email": "names passengers.element.email, of which a row has several values",
        "customer.land": "but spec.table.create.schema has no such column",
    }
    for field, text in refused.items():
        with pytest.raises(InputError, match=r"InvalidTableDefinition: spec\.table\.create\.partitionBy") as error:
            Trips.begin(spark, lake, (field,)).filled()
        assert text in error.value.message


@pytest.mark.parametrize("tombstoned", [False, True])
def test_filters_of_both_readers_find_the_same_rows(make: Make, tombstoned: bool) -> None:
    story = make(3, **{"write.parquet.row-group-size-bytes": "4096"})
    if tombstoned:
        story.revert("A")
    rows, somebody = story.rows_at(), passenger(GONE[1])
    has_somebody = f"array_contains(passengers.email, '{somebody}')"
    for scanned, read in {
        f"customer.email = '{customer(GONE[1])}'": f"customer.email = '{customer(GONE[1])}'",
        "customer.country = 'FR' and day = 1": "customer.country = 'FR' AND day = 1",
        "customer.email is null": "customer.email IS NULL",
        f"passengers.element.email in ('{somebody}', 'nobody')": has_somebody,
        f"not (passengers.element.email = '{somebody}')": f"NOT coalesce({has_somebody}, false)",
        f"ticket.id = '{ticket(GONE[1])}'": f"`ticket.id` = '{ticket(GONE[1])}'",
    }.items():
        found = of_arrow(lethe.scan(story.full_name, filter=scanned).to_arrow())
        assert found == of_spark(lethe_spark.read(story.spark, story.full_name, filter=read)), scanned
        assert 0 < len(found) < len(rows), scanned


SMALL = {
    "write.parquet.row-group-size-bytes": "4096",
    "write.parquet.row-group-check-min-record-count": "50",
    "write.parquet.row-group-check-max-record-count": "50",
    "write.orc.stripe-size-bytes": "4096",
}
"""Parts of files."""


@pytest.mark.parametrize("format_name", ["parquet", "orc", "avro"])
def test_positions_are_those_of_spark_in_files_of_every_format(
    spark: SparkSession, make: Make, format_name: str
) -> None:
    story = make(2, (), **{"write.format.default": format_name, **SMALL})
    rows = spark.range(3_000).selectExpr(
        "id AS v",
        "1 AS day",
        "IF(id % 5 = 0, NULL, named_struct('email', concat('c', id % 97), 'country', 'DE')) AS customer",
        "IF(id % 7 = 0, NULL, transform(sequence(0, id % 3), n -> IF(n = 1, NULL, named_struct('seat', 1, 'email', "
        "concat('p', (id + n) % 89))))) AS passengers",
        "concat('t', id % 83) AS `ticket.id`",
        "'X' AS batch_id",
    )
    rows.coalesce(1).writeTo(story.full_name).append()
    table, head = story.table(), story.head()
    values = {n: (f"{n[0]}5", f"{n[0]}61") for n in COLUMNS}
    wanted = {
        n: Wanted.of(story.field_id(n), Values(ValueKind(ValueType.STRING), texts)) for n, texts in values.items()
    }

    found = {
        (name, c.path, position)
        for c in candidates(table, head.snapshot_id, wanted)
        for name, positions in find(SearchedFile(table.io, c.path, c.format_name), wanted).items()
        for position in positions
    }

    conditions = {
        "customer.email": "customer.email IN {}",
        "passengers.element.email": "exists(passengers, p -> p.email IN {})",
        "ticket.id": "`ticket.id` IN {}",
    }
    expected = set()
    for name, condition in conditions.items():
        frame = spark.table(story.full_name).where(condition.format(values[name])).select("_file", "_pos")
        expected |= {(name, r["_file"], r["_pos"]) for r in frame.collect()}
    assert found == expected
    assert len({name for name, _, _ in found}) == len(COLUMNS)
