"""The ways in that other stories do not take: formats, layouts, files as they are, events of the store, lists of ids, changes
by key; and what the table of batches says. Three Datasets: one with Jobs, one with the warm driver, one with the committer."""

import gzip
import io
import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
import pytest

from tests.cluster.kube import Cluster
from tests.cluster.lake import ClusterLake, Rows, a_table_of, batch_folder, rows_of, split
from tests.cluster.servers import queue as queues
from tests.cluster.story import WARM, ClusterStory
from tests.support.clock import wait_until
from tests.support.servers.sqs import TestQueue, created

pytestmark = pytest.mark.cluster

SOON = 60


@pytest.fixture(scope="module")
def queue(cluster: Cluster, lake: ClusterLake) -> Iterator[TestQueue]:
    with queues.running(cluster, lake) as server:
        yield server.queue()


@dataclass(frozen=True)
class Inputs:
    """`lines`: JSON, a file for each batch, events. `sheets`: CSV, a file for each batch. `registered`: Parquet as it is."""

    lines: ClusterStory
    sheets: ClusterStory
    registered: ClusterStory


@pytest.fixture(scope="module")
def inputs(stories: Callable[[str], ClusterStory], queue: TestQueue) -> Inputs:
    """Their runs are under way."""
    found = Inputs(stories("lines"), stories("sheets"), stories("registered"))
    for batch, first_id in (("r0", 0), ("r1", 100), ("r2", 200)):
        put_as_it_will_be(found.registered, batch, a_table_of(10, first_id))
    put_file(found.sheets, "größe 1.csv", as_csv(a_table_of(10)))
    put_file(found.sheets, "c2.csv.gz", gzip.compress(as_csv(a_table_of(10, first_id=100, day=2))))
    found.sheets.expected += rows_of("größe 1", a_table_of(10)) + rows_of("c2", a_table_of(10, first_id=100))
    # If the operator loses its Lease, it forgets the messages in flight, which come again after their visibility timeout.
    events = {"queueUrl": queue.url, "windowSeconds": 1, "visibilitySeconds": 30, "resyncSeconds": 3600}
    found.lines.apply(
        found.lines.a_dataset(buffer={"uri": found.lines.buffer, "format": "json", "layout": "File", "events": events})
    )
    found.sheets.apply(
        found.sheets.a_dataset(
            runTemplate=WARM, buffer={"uri": found.sheets.buffer, "format": "csv", "layout": "File"}
        ),
        found.registered.a_dataset(consolidation={"mode": "Register", "minBatches": 3}),
    )
    announce_two_batches(found.lines, queue)
    return found


def announce_two_batches(story: ClusterStory, queue: TestQueue) -> None:
    """Put two batches into the buffer after it was listed, with the messages that the store would send."""
    story.cluster.wait_for_condition(story.dataset, "EventsReady", within_seconds=SOON)
    story.cluster.wait_for(story.dataset, lambda b: "buffer" in b["status"], within_seconds=SOON, why="a listing")
    announced = [
        put_file(story, "l1.json.gz", gzip.compress(as_json(a_table_of(5)))),
        put_file(story, "l2.json", as_json(a_table_of(5, first_id=50))),
    ]
    story.expected += rows_of("l1", a_table_of(5)) + rows_of("l2", a_table_of(5, first_id=50))
    for uri in announced:
        bucket, key = split(uri)
        head = story.lake.s3.head_object(Bucket=bucket, Key=key)
        queue.send(created(bucket, key, head["ETag"].strip('"'), size=head["ContentLength"]))


def put_file(story: ClusterStory, name: str, content: bytes) -> str:
    """A batch in the layout File."""
    uri = batch_folder(story.buffer, name).replace("batch_id=", "")
    story.lake.put(uri, content)
    return uri


def as_json(table: pa.Table) -> bytes:
    rows = [{**row, "at": row["at"].isoformat()} for row in table.to_pylist()]
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def as_csv(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pa_csv.write_csv(table.set_column(1, "at", pa.array([t.isoformat() for t in table["at"].to_pylist()])), out)
    return out.getvalue()


def put_as_it_will_be(story: ClusterStory, batch: str, table: pa.Table) -> None:
    """A batch whose file can be a file of the table."""
    out = io.BytesIO()
    pq.write_table(table.append_column("batch_id", pa.array([batch] * table.num_rows, pa.string())), out)
    folder = batch_folder(story.buffer, batch)
    story.lake.put(f"{folder}/part-0.parquet", out.getvalue())
    story.lake.put(f"{folder}/_SUCCESS")
    story.expected += rows_of(batch, table)


def states(story: ClusterStory) -> dict[str, str]:
    """What the table of batches says."""
    rows = story.lake.catalog.load_table(f"{story.table}_batches").scan().to_arrow().to_pylist()
    return {row["batch_id"]: row["state"] for row in rows}


def test_events_of_the_store_lead_to_a_run_that_promotes_files_of_json(inputs: Inputs, queue: TestQueue) -> None:
    story = inputs.lines

    story.wait_for_status(batches_promoted=2)

    assert story.lake.rows(story.table) == story.expected
    wait_until(lambda: queue.counts() == (0, 0), SOON)  # the messages of a batch go after its commit


def test_files_of_csv_are_batches_whose_rows_are_changed_by_key(inputs: Inputs) -> None:
    story = inputs.sheets
    story.wait_for_status(batches_promoted=2)
    assert story.lake.rows(story.table) == story.expected
    changes = pa.concat_tables([a_table_of(2, first_id=3), a_table_of(1, first_id=900), a_table_of(1, first_id=102)])
    changes = changes.append_column("op", pa.array(["U", "D", "I", "U"]))
    story.lake.put(f"{story.restated}/fix/part-0.csv", as_csv(changes))
    story.lake.put(f"{story.restated}/fix/_SUCCESS")
    keyed = {"batchId": "fix", "uri": f"{story.restated}/fix/", "keyColumns": ["id"], "opColumn": "op"}

    story.apply(story.a_restatement("fix", "Replay", replacement=keyed))
    done = story.wait_for_success("fix")

    story.expected -= Rows({("größe 1", 3): 1, ("größe 1", 4): 1, ("c2", 102): 1})
    story.expected += Rows({("fix", 3): 1, ("fix", 900): 1, ("fix", 102): 1})
    assert story.lake.rows(story.table) == story.expected
    assert (done["status"]["result"]["rowsErased"], done["status"]["result"]["rowsAdded"]) == (3, 3)


def test_registered_files_are_the_producers_and_a_list_of_ids_takes_them_back(cluster: Cluster, inputs: Inputs) -> None:
    story = inputs.registered
    story.wait_for_status(batches_promoted=3)
    assert story.lake.rows(story.table) == story.expected
    assert story.lake.data_files(story.table) == {
        f"{batch_folder(story.buffer, batch)}/part-0.parquet" for batch in ("r0", "r1", "r2")
    }
    ids = {"name": f"{story.name}-ids", "labels": {"lethe.dev/batch-ids": "true"}}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": ids, "data": {"ids": "r0\nr2\n"}})

    story.apply(
        story.a_restatement("listed", batchIdsFrom={"configMapKeyRef": {"name": f"{story.name}-ids", "key": "ids"}})
    )
    done = story.wait_for_success("listed")

    cluster.delete(f"configmaps/{story.name}-ids")
    story.forget("r0")
    story.forget("r2")
    assert done["status"]["result"]["rowsDeleted"] == 20
    assert story.lake.rows(story.table) == story.expected
    wanted = {"r0": "reverted", "r1": "promoted", "r2": "reverted"}
    wait_until(lambda: states(story) == wanted, SOON)
