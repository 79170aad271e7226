"""AWS Glue as the catalog: PyIceberg's client and that of Iceberg's Java library, on tables and buffers in S3."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from lethe.contract.run import BufferRef, RestatementRequest
from lethe.contract.settings import Deletes
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.gateway import jvm
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.native_deletes import Native
from tests.spark.support.story import ALL_GONE, Row, Story, of_arrow, of_batches, of_spark, put_on
from tests.spark.support.streaming_writer import delete_by_equality
from tests.spark.support.unknown_types import KINDS, add_column
from tests.spark.support.void_spec import give_void_spec, on_day_1, void_spec
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers import glue as servers
from tests.support.servers.glue import Glue
from tests.support.servers.stores import Place, s3_server


@dataclass(frozen=True)
class Glued:
    """A Dataset whose table is in Glue, and whose buffer is in S3."""

    story: Story
    glue: Glue
    place: Place

    @property
    def buffer(self) -> BufferRef:
        return BufferRef(uri=self.place.at("buffer"))

    def consolidate(self, *batch_ids: str, **at: object) -> None:
        for batch_id in batch_ids:
            put_on(self.place, "buffer", batch_id)
        self.story.run(self.story.consolidation(*batch_ids, buffer=self.buffer), **at)  # type: ignore[arg-type]

    def restate(self, request: RestatementRequest, **at: object) -> bool:
        spec = self.story.restatement(request, buffer=self.buffer)
        (result,) = self.story.run(spec, **at).requests  # type: ignore[arg-type]
        return result.succeeded

    def rows(self) -> Counter[Row]:
        return of_arrow(lethe.scan(self.story.full_name).to_arrow())


@pytest.fixture(scope="module")
def glue(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Glue]:
    with servers.running(tmp_path_factory.mktemp("glue") / "server") as found:
        yield found


@pytest.fixture
def glued(spark: SparkSession, lake: Lake, glue: Glue, request: pytest.FixtureRequest) -> Iterator[Glued]:
    """Batches A and B are in the table. The parameter is its format version.

    Glue's client in Java has the credentials of its process: on EKS those of the pod's role, here two system properties.
    """
    system = jvm(spark).java.lang.System
    with ExitStack() as stack:
        place = stack.enter_context(s3_server()).place("air")
        for name, value in (("aws.accessKeyId", servers.KEY), ("aws.secretAccessKey", servers.SECRET)):
            system.setProperty(name, value)
            stack.callback(system.clearProperty, name)
        # Spark keeps a catalog under its name, and each test has a store of its own.
        catalog = f"glued_{place.properties['s3.endpoint'].rpartition(':')[2]}"
        style = {"s3.path-style-access": "true"}
        lake.add_catalog(catalog, warehouse=place.at("wh"), **glue.properties, **place.properties, **style)
        make_session(catalog)
        found = Glued(
            Story.begin(spark, lake, catalog=catalog, format_version=getattr(request, "param", 2)), glue, place
        )
        found.consolidate("A", "B")
        yield found


def test_a_table_is_filled_reverted_read_and_vacuumed(glued: Glued) -> None:
    promoted = glued.rows()
    reverted = glued.restate(a_request("revert", batch_ids=["A"]))
    glued.story.run(glued.story.vacuuming(ALL_GONE, buffer=glued.buffer))

    assert (promoted, reverted, glued.rows()) == (of_batches("A", "B"), True, of_batches("B"))
    assert set(glued.story.table().scan().to_arrow()["batch_id"].to_pylist()) == {"B"}
    assert glued.glue.unversioned == 0


def test_of_two_restatements_at_one_moment_none_is_lost(glued: Glued) -> None:
    """The second one commits while the first one's update is on its way to Glue, which then refuses it: its version is old."""
    theirs: list[bool] = []
    refused = glued.glue.refused
    request = a_request("theirs", batch_ids=["B"])

    def commit_theirs_first() -> None:
        glued.glue.before_update = lambda: theirs.append(glued.restate(request))

    mine = glued.restate(a_request("mine", batch_ids=["A"]), before_commit=commit_theirs_first)

    assert (mine, theirs) == (True, [True])
    assert glued.glue.refused > refused
    assert set(glued.story.ledger().requests) == {"ns/mine/0", "ns/theirs/0"}
    assert glued.rows() == Counter()


@pytest.mark.parametrize("glued", [3], indirect=True)
@pytest.mark.parametrize("kind", some(KINDS, "variant", "geometry"))
def test_batches_go_on_beside_a_column_of_a_type_that_lethe_does_not_know_and_after_it(glued: Glued, kind: str) -> None:
    """Glue's client of PyIceberg loads the table from its metadata, and that of Java tells Glue the columns of each commit."""
    story, columns = glued.story, ("v", "day", "batch_id")

    def rows() -> Counter[Row]:
        found = of_arrow(lethe.scan(story.full_name, columns=columns).to_arrow())
        assert of_spark(lethe_spark.read(story.spark, story.full_name).select(*columns)) == found
        return found

    add_column(story, kind)

    glued.consolidate("D")
    assert glued.restate(a_request("revert", batch_ids=["A"]))
    assert rows() == of_batches("B", "D")
    assert story.run(story.vacuuming(ALL_GONE, buffer=glued.buffer)).tombstones_purged == 1
    assert rows() == of_batches("B", "D")
    with pytest.raises(InputError, match=f"column shape has the type {kind}"):
        lethe.scan(story.full_name)

    story.spark.sql(f"ALTER TABLE {story.full_name} DROP COLUMN shape")

    glued.consolidate("E")
    assert glued.rows() == of_batches("B", "D", "E")


@pytest.mark.long
@pytest.mark.parametrize("mode", Deletes)
def test_rows_that_another_engine_deleted_on_a_void_spec_stay_deleted(glued: Glued, mode: str) -> None:
    """Also those of batches that were taken back, in each way, and purged."""
    spark, lake, catalog = glued.story.spark, glued.story.lake, glued.story.catalog
    story = Native.of(Story.begin(spark, lake, (), catalog), Deletes(mode))
    of_void = Glued(story, glued.glue, glued.place)
    give_void_spec(story)
    of_void.consolidate("D", "E")
    delete_by_equality(story, "day", 2, void_spec(story))

    def rows() -> Counter[Row]:
        return of_spark(lethe_spark.read(spark, story.full_name))

    assert rows() == on_day_1(of_batches(*"ABCDE"))
    assert of_void.restate(a_request("revert", batch_ids=["C", "E"]))
    assert rows() == on_day_1(of_batches(*"ABD"))
    assert story.run(story.vacuuming(buffer=of_void.buffer)).tombstones_purged == 2
    spark.catalog.clearCache()
    assert rows() == of_spark(spark.table(story.full_name)) == on_day_1(of_batches(*"ABD"))


@pytest.mark.long
def test_an_append_of_pyiceberg_during_a_consolidation_is_not_lost(glued: Glued) -> None:
    glued.consolidate("C", before_commit=lambda: glued.story.append_as_foreign_writer("x"))

    assert glued.rows().total() == of_batches("A", "B", "C").total() + 1
