"""Tables in a folder and nothing else: Spark writes, reverts and reads them by listing, whatever `version-hint.text` says."""

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from lethe.contract.run import CreateTable, TableRef
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.spark_table import SparkTable
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.story import Story
from tests.support.lake import SCHEMA, Lake

CATALOG = "folder"


@pytest.fixture(scope="module")
def home(spark: SparkSession, lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The warehouse of the catalog `folder`, which this session is served."""
    warehouse = tmp_path_factory.mktemp("folders")
    lake.add_catalog(CATALOG, type="hadoop", warehouse=f"file://{warehouse}")
    assert make_session(CATALOG) == spark
    return warehouse


@pytest.fixture
def table(spark: SparkSession, home: Path, request: Any) -> str:
    folder = re.sub(r"\W", "_", request.node.name)
    name = f"air.{folder}"
    made = SparkTable.create(spark, CATALOG, name, CreateTable(schema=SCHEMA, partition_by=("day",)))
    assert made.location == f"file://{home}/air/{folder}"
    return f"{CATALOG}.{name}"


def metadata(home: Path, table: str) -> Path:
    return home / "air" / table.rpartition(".")[2] / "metadata"


def versions(home: Path, table: str) -> list[int]:
    return sorted(int(p.name.split(".")[0][1:]) for p in metadata(home, table).glob("v*.metadata.json"))


def write(spark: SparkSession, table: str, batch_id: str, *values: int) -> lethe_spark.WriteResult:
    frame = spark.createDataFrame([(v, 1 + v % 2) for v in values], "v bigint, day int")
    return lethe_spark.write(frame, table, batch_id=batch_id)


def rows_of(spark: SparkSession, table: str) -> dict[str, int]:
    """Rows by batch as Lethe reads them, both ways."""
    by_arrow = Counter(lethe.scan(table).to_arrow()["batch_id"].to_pylist())
    read = lethe_spark.read(spark, table).groupBy("batch_id").count().collect()
    assert {r[0]: r[1] for r in read} == dict(by_arrow)
    return dict(by_arrow)


def spoil(home: Path, table: str, hint: str | None) -> None:
    file = metadata(home, table) / "version-hint.text"
    if hint is None:
        file.unlink(missing_ok=True)
    else:
        file.write_text(hint)


@pytest.mark.parametrize("hint", some([None, "1", "999", "x"], "999"))
def test_consolidations_and_reverts_work_with_any_version_hint(
    spark: SparkSession, home: Path, table: str, hint: str | None
) -> None:
    batch = f"hint {hint}"
    before = rows_of(spark, table)
    spoil(home, table, hint)
    write(spark, table, batch, 1, 2, 3)
    spoil(home, table, hint)
    assert write(spark, table, batch, 1, 2, 3).already
    assert rows_of(spark, table) == before | {batch: 3}

    spoil(home, table, hint)
    reverted = lethe_spark.revert(spark, table, [batch])
    spoil(home, table, hint)
    assert rows_of(spark, table) == before

    lethe_spark.undo(spark, table, reverted.restatement)
    assert rows_of(spark, table) == before | {batch: 3}
    assert (metadata(home, table) / "version-hint.text").read_text() == str(versions(home, table)[-1])


def test_spark_itself_writes_and_reads_such_a_table_in_the_same_way(
    spark: SparkSession, home: Path, table: str
) -> None:
    write(spark, table, "A", 1)
    spoil(home, table, "1")

    spark.sql(f"INSERT INTO {table} VALUES (7, 1, 'B')")

    assert spark.table(table).count() == 2
    assert rows_of(spark, table) == {"A": 1, "B": 1}


def test_names_of_all_alphabets_arrive_as_they_were_written(spark: SparkSession, home: Path) -> None:
    """Iceberg's REST client would send them as question marks."""
    name = f"{CATALOG}.air.alphabets"
    spark.sql(f"CREATE TABLE {name} (`größe` bigint, `名前` string, batch_id string) COMMENT 'Żółć, ärgerlich'")
    spark.sql(f"INSERT INTO {name} VALUES (1, '山田', 'ä')")

    assert lethe.scan(name).to_arrow().to_pylist() == [{"größe": 1, "名前": "山田", "batch_id": "ä"}]
    document = json.loads((metadata(home, name) / "v1.metadata.json").read_text())
    assert document["properties"]["comment"] == "Żółć, ärgerlich"


def test_a_consolidation_takes_such_a_table(spark: SparkSession, lake: Lake, table: str) -> None:
    story = Story(spark, lake, table.partition(".")[2], catalog=CATALOG)
    story.put("A")
    spec = story.consolidation("A")
    adopted = TableRef(catalog=CATALOG, name=story.name, adopt=True)

    result = story.run(spec.model_copy(update={"table": adopted}))

    assert (result.outcome, result.rows_added) == ("Committed", 4)
    assert rows_of(spark, table) == {"A": 4}


def test_a_session_whose_catalog_is_sparks_own_of_that_type_is_refused(
    spark: SparkSession, lake: Lake, tmp_path: Path
) -> None:
    lake.add_catalog("own", type="hadoop", warehouse=f"file://{tmp_path}")
    spark.conf.set("spark.sql.catalog.own", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.own.type", "hadoop")
    spark.conf.set("spark.sql.catalog.own.warehouse", f"file://{tmp_path}")

    for act in (
        lambda: lethe_spark.read(spark, "own.air.flights"),
        lambda: write(spark, "own.air.flights", "A", 1),
        lambda: make_session("own"),
    ):
        with pytest.raises(InputError, match="which commits by a rename") as refused:
            act()
        assert refused.value.reason == "CatalogNotServed"
