"""A view of the catalog in the place of a table is refused by name at every door."""

from collections.abc import Callable
from typing import Any

import lethe
import lethe_spark
import pytest
from click.testing import CliRunner
from lethe.base.errors import InputError
from lethe.cli.main import cli
from lethe.contract.result import RunResult
from lethe.contract.run import CreateTable
from lethe.iceberg import catalogs
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.story import Story
from tests.support.lake import CATALOG, Lake


@pytest.fixture
def story(spark: SparkSession, lake: Lake) -> Story:
    return Story.begin(spark, lake)


@pytest.fixture(params=some(["sql", "rest"], "rest"))
def view(spark: SparkSession, request: pytest.FixtureRequest) -> str:
    """A view, in a catalog that has it from Spark."""
    catalog = CATALOG
    if request.param == "rest":
        request.getfixturevalue("rest")
        make_session("rest")
        catalog = "rest"
    spark.sql(f"CREATE NAMESPACE IF NOT EXISTS {catalog}.views")
    spark.sql(f"CREATE OR REPLACE TABLE {catalog}.views.t (v bigint, batch_id string) USING iceberg")
    spark.sql(f"CREATE OR REPLACE VIEW {catalog}.views.shown AS SELECT * FROM {catalog}.views.t")
    return f"{catalog}.views.shown"


def test_readers_refuse_a_view_by_name(spark: SparkSession, view: str) -> None:
    catalog, _, name = view.partition(".")
    doors: list[Callable[[], Any]] = [
        lambda: lethe.scan(view),
        lambda: lethe.scan(name, catalog=catalogs.load(catalog)),
        lambda: lethe_spark.read(spark, view),
    ]
    for door in doors:
        with pytest.raises(InputError, match=f"{name} is a view in the catalog {catalog}") as refused:
            door()
        assert refused.value.reason == "TableIsView"

    said = CliRunner().invoke(cli, ["doctor", view])

    assert said.exit_code == 10
    assert "TableIsView" in said.output


@pytest.mark.parametrize("creates", some([True, False], False))
def test_a_run_refuses_a_view_by_name_and_leaves_it(story: Story, view: str, creates: bool) -> None:
    """Also where it would create the table."""
    catalog, _, name = view.partition(".")
    create = CreateTable(schema="v bigint, day int, batch_id string") if creates else None
    spec = story.consolidation("X")
    table = spec.table.model_copy(update={"catalog": catalog, "name": name, "create": create})
    result: RunResult | None = None

    with pytest.raises(InputError, match=f"{name} is a view"):
        result = story.run(spec.model_copy(update={"table": table}))

    assert result is None
    assert story.spark.sql(f"SELECT count(*) FROM {view}").first() == (0,)
