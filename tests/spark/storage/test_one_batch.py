"""One batch on each store, from the buffer to the vacuum: buffer, replacement and list of ids are there, and so is the table."""

from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from lethe.contract.run import BufferRef, Replacement
from lethe.uri import Backend, backend_of
from lethe_spark.apps import session
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.story import ALL_GONE, Row, Story, of_arrow, of_batches, of_spark, put_on
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers.stores import Place, Server, azure_server, gcs_server, s3_server

IN_AZURE = "abfss://lake@account.dfs.core.windows.net/wh"
SERVERS = {Backend.S3: s3_server, Backend.GCS: gcs_server, Backend.AZURE: azure_server}


# All other tests of Spark have local files. The other stores' objects are in tests/services/storage.
@pytest.fixture(params=some(Backend, Backend.S3))
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        if request.param is Backend.LOCAL:
            server = Server(Backend.LOCAL, f"file://{tmp_path}/store", "", lambda _: {})
        else:
            server = stack.enter_context(SERVERS[request.param]())
        yield server.place("air")


@pytest.fixture
def story(spark: SparkSession, lake: Lake, place: Place, tmp_path: Path) -> Story:
    catalog = f"on_{place.backend}"
    style = {"s3.path-style-access": "true"} if place.backend is Backend.S3 else {}
    lake.add_catalog(
        catalog, type="sql", uri=f"sqlite:///{tmp_path}/c.db", warehouse=place.at("wh"), **place.properties, **style
    )
    make_session(catalog)
    return Story.begin(spark, lake, catalog=catalog)


def rows_of(story: Story, snapshot_id: int | None = None) -> Counter[Row]:
    """What readers find: lethe.scan and Spark find the same."""
    found = of_arrow(lethe.scan(story.full_name, snapshot_id=snapshot_id).to_arrow())
    assert of_spark(lethe_spark.read(story.spark, story.full_name, snapshot_id=snapshot_id)) == found
    return found


def test_a_batch_is_promoted_replaced_reverted_by_a_list_and_purged(story: Story, place: Place) -> None:
    buffer = BufferRef(uri=place.at("buffer"))
    for batch_id in ("A", "B", "C"):
        put_on(place, "buffer", batch_id)
    replacement = Replacement(batch_id="A2", uri=put_on(place, "restated", "A2", rows=3))
    place.store.put(place.at("lists/ids.txt"), b"B\n")
    replay = a_request("replay", "Replay", batch_ids=("A",), replacement=replacement)
    revert = a_request("revert", batch_ids=(), batch_ids_uri=place.at("lists/ids.txt"))

    consolidated = story.run(story.consolidation("A", "B", "C", buffer=buffer))
    promoted = rows_of(story)
    results = [story.run(story.restatement(r, buffer=buffer)).requests[0] for r in (replay, revert)]
    restated = rows_of(story)
    vacuumed = story.run(story.vacuuming(ALL_GONE, buffer=buffer))

    wanted = of_batches("C") + of_batches("A2", rows=3)
    assert (consolidated.rows_added, promoted) == (12, of_batches("A", "B", "C"))
    assert [(r.reason, r.rows_deleted, r.rows_added) for r in results] == [("", 4, 3), ("", 4, 0)]
    assert (restated, rows_of(story)) == (wanted, wanted)
    table = story.table()
    assert Counter(table.scan().to_arrow()["batch_id"].to_pylist()) == {"C": 4, "A2": 3}, "rows were not purged"
    assert backend_of(table.location()) is place.backend
    assert vacuumed.snapshot_id == story.head().snapshot_id


@pytest.mark.usefixtures("spark")
def test_a_warehouse_without_the_jar_of_its_store_is_refused(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_CLIENTS", {Backend.AZURE: "com.azure.Missing"})
    lake.add_catalog("no_jar", type="sql", uri="sqlite:////nowhere.db", warehouse=IN_AZURE)

    with pytest.raises(InputError, match=r"catalog no_jar .* no com\.azure\.Missing") as refused:
        make_session("no_jar")

    assert refused.value.reason == "UnsupportedCatalog"


@pytest.mark.usefixtures("spark")
def test_credentials_that_do_not_open_tables_are_refused(lake: Lake) -> None:
    principal = {"adls.tenant-id": "t", "adls.client-id": "c", "adls.client-secret": "s3cr3t"}
    lake.add_catalog("principal", type="sql", uri="sqlite:////nowhere.db", warehouse=IN_AZURE, **principal)

    with pytest.raises(InputError, match=r"adls\.client-secret, which is for buffers only") as refused:
        make_session("principal")

    assert refused.value.reason == "UnsupportedCatalog"
    assert "s3cr3t" not in str(refused.value)
