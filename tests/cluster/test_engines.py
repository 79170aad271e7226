"""What engines read of a table with the default settings, at the snapshots that the statuses of Restatements name."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import lethe
import pyarrow as pa
import pytest

from tests.cluster.lake import CATALOG, COLUMNS, Rows, a_table_of, rows_of
from tests.cluster.other_engine import rows_by_spark
from tests.cluster.story import ClusterStory
from tests.support.engines.processes import read_with
from tests.support.servers import trino

pytestmark = [pytest.mark.cluster, pytest.mark.long]

ENGINES = ("PyIceberg", "DuckDB", "Polars")
KEY = "id"
ROWS = {"a": 100, "b": 101, "c": 102}
CORRECTED = a_table_of(60, first_id=5000, day=2)


@pytest.mark.parametrize("format_version", [2, 3])
def test_each_engine_reads_a_revert_an_undo_and_a_replay_at_its_snapshot(
    stories: Callable[[str], ClusterStory], tmp_path: Path, format_version: int
) -> None:
    """By native deletes in the snapshot of the Restatement: no vacuum, and nothing that follows."""
    story = begun(stories(f"engines-v{format_version}"), format_version)
    wanted = restated(story)

    table = story.lake.catalog.load_table(story.table)
    properties = {k: v for k, v in table.io.properties.items() if k.startswith("s3.")}
    at = [(table.metadata_location, snapshot_id) for snapshot_id in wanted]
    found: dict[str, list[object]] = {
        "lethe.scan": [of_arrow(lethe.scan(table, snapshot_id=i).to_arrow()) for i in wanted],
        "Spark SQL": [
            rows_by_spark(story.cluster, story.lake.services, f"{story.table} VERSION AS OF {i}") for i in wanted
        ],
    }
    for engine in ENGINES:
        read = read_with(engine, at, key=KEY, properties=properties)["tables"]
        found[engine] = [of_lists(one["rows"]) if "rows" in one else one for one in read]
    if trino.java_home() is not None:
        with trino.running(tmp_path, trino_settings(properties)) as server:
            found["Trino"] = [
                of_lists(server.rows(m, table.location(), ("batch_id", KEY), snapshot_id)) for m, snapshot_id in at
            ]

    assert found == {engine: list(wanted.values()) for engine in found}


def begun(story: ClusterStory, format_version: int) -> ClusterStory:
    """The batches are in the same data files."""
    for batch, rows in ROWS.items():
        story.put_batch(batch, rows=rows)
    create = {"schema": COLUMNS, "partitionBy": ["days(at)"], "formatVersion": format_version}
    dataset = story.a_dataset(
        table={"catalog": CATALOG, "name": story.table, "create": create}, consolidation={"minBatches": len(ROWS)}
    )
    del dataset["spec"]["snapshots"]  # by default, snapshots stay for a while
    story.apply(dataset)
    story.wait_for_status(batches_promoted=len(ROWS))
    return story


def restated(story: ClusterStory) -> dict[int, Rows]:
    """A Revert, its Undo, and a Replay of the same batch: the right rows, by the snapshot that the status names."""
    story.lake.put_batch(f"{story.restated}/b.2", CORRECTED)
    replacement = {"batchId": "b.2", "uri": f"{story.restated}/b.2/"}
    others = rows_of("a", a_table_of(ROWS["a"])) + rows_of("c", a_table_of(ROWS["c"]))
    steps = (
        (story.a_restatement("revert", batchIds=["b"]), others),
        (story.a_restatement("undo", "Undo", undoes={"name": f"{story.name}-revert"}), Rows(story.expected)),
        (
            story.a_restatement("replay", "Replay", batchIds=["b"], replacement=replacement),
            others + rows_of("b.2", CORRECTED),
        ),
    )
    found = {}
    for restatement, rows in steps:
        story.apply(restatement)
        name = restatement["metadata"]["name"].removeprefix(f"{story.name}-")
        found[int(story.wait_for_success(name)["status"]["result"]["snapshotId"])] = rows
    return found


def trino_settings(properties: Mapping[str, str]) -> dict[str, str]:
    return {
        "fs.native-s3.enabled": "true",
        "s3.endpoint": properties["s3.endpoint"],
        "s3.region": properties["s3.region"],
        "s3.path-style-access": properties["s3.path-style-access"],
        "s3.aws-access-key": properties["s3.access-key-id"],
        "s3.aws-secret-key": properties["s3.secret-access-key"],
    }


def of_lists(rows: Sequence[Sequence[object]]) -> Rows:
    return Counter((str(batch), int(str(key))) for batch, key in rows)


def of_arrow(table: pa.Table) -> Rows:
    return of_lists(list(zip(table["batch_id"].to_pylist(), table[KEY].to_pylist(), strict=True)))
