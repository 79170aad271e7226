"""Nothing tells who was erased, or whose rows were changed: no ledger, metadata, name, log, result or plan of a query."""

import json
import logging

import pyarrow as pa
import pytest
from lethe.contract.run import RunSpec
from pyspark.sql import SparkSession

from tests.spark.parameters import VERSION_2
from tests.spark.support.built_once import built_once
from tests.spark.support.changes import CHANGES, Changing
from tests.spark.support.driver import Driver
from tests.spark.support.erases import Names, files_with, name_of, row, table_folder
from tests.spark.support.story import Story, results_by_name
from tests.support.builders import a_request
from tests.support.lake import Lake


@pytest.fixture(params=[2, 3], ids=["v2", "v3"])
@built_once
def story(spark: SparkSession, lake: Lake, request: pytest.FixtureRequest) -> Names:
    return Names.of(Story.begin(spark, lake), request.param).filled()


def two_erases(story: Names, secret: str) -> RunSpec:
    """One that takes a row and one that is refused, of the same value."""
    return story.restatement(
        story.an_erase(secret, "somebody else", name="good"), story.an_erase(secret, name="bad", column="day")
    )


def check_nobody_knows(story: Names, secret: str, **texts: str) -> None:
    ledger = json.dumps([dict(e.result) for e in story.ledger().requests.values()])
    places = {**texts, "ledger": ledger}
    assert [where for where, text in places.items() if secret in text or "somebody else" in text] == []
    assert files_with(table_folder(story), secret, "somebody else") == []


@pytest.mark.long
def test_no_value_is_written_anywhere(story: Names, driver: Driver) -> None:
    """Not into the table's folder except its data files, compressed or not, nor into the input, the log and the output of a
    process."""
    secret = name_of(row("B", 1)[1])
    assert files_with(table_folder(story), secret) == []  # it is no bound of a file, else this would test nothing
    spec = two_erases(story, secret)
    assert files_with(story.lake.home / "values", secret) != []  # what is searched for can be found

    ended = driver.run(spec)

    assert ended.result is not None
    assert (results_by_name(ended.result)["good"].rows_erased, results_by_name(ended.result)["bad"].reason) == (
        1,
        "InvalidValues",
    )
    document = driver.file_of(spec).read_text()
    check_nobody_knows(story, secret, run=document, result=ended.result.to_json(), log=ended.log)
    story.vacuum()
    check_nobody_knows(story, secret)


@VERSION_2
def test_no_value_is_in_what_spark_remembers_of_its_queries(story: Names, caplog: pytest.LogCaptureFixture) -> None:
    """Its pages and event logs show that. Nor is one in the run's input, its result and its log."""
    caplog.set_level(logging.INFO)
    story.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.format.default' = 'avro')")
    story.append_by_spark(row("B", 1), row("x", 0))
    secret = name_of(row("B", 1)[1])

    spec = two_erases(story, secret)

    result = story.run(spec)

    assert results_by_name(result)["good"].rows_erased == 2
    told = {"run": spec.to_json(), "result": result.to_json(), "log": caplog.text}
    check_nobody_knows(story, secret, plans=plans_of(story.spark), **told)


def plans_of(spark: SparkSession) -> str:
    """What Spark remembers of the queries that it ran, as its pages and event logs show it."""
    store = spark._jsparkSession.sharedState().statusStore()
    listed = store.executionsList()
    executions = [listed.apply(n) for n in range(int(listed.size()))]
    assert executions
    return "\n".join(f"{e.description()}\n{e.details()}\n{e.physicalPlanDescription()}" for e in executions)


def test_keys_are_in_no_ledger_no_metadata_and_no_name(spark: SparkSession, lake: Lake) -> None:
    """But for bounds of the data files, which hold the least and the greatest value of any column."""
    begun = Story.begin(spark, lake)
    story = Changing(begun.spark, begun.lake, begun.name, begun.partition_by, begun.catalog, 3).filled()
    rows = pa.Table.from_pylist(
        [{"v": v, "day": 1, "name": name_of(v), "op": op} for v, op in ((row("B", 1)[1], "U"), (row("B", 2)[1], "D"))],
        CHANGES,
    )

    result = story.restate(
        a_request("x", "Replay", batch_ids=(), replacement=story.put_changes("C1", rows, keys=("name",)))
    )

    assert (result.rows_erased, result.rows_added) == (2, 1)
    assert name_of(row("B", 2)[1]) not in result.to_json()
    assert files_with(table_folder(story) / "_tombstones", *map(name_of, (row("B", 1)[1], row("B", 2)[1]))) == []
