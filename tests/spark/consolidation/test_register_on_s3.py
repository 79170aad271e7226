"""Registered objects of a bucket, on a real S3 server."""

from pathlib import Path

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.base.ids import batch_folder
from lethe.contract.run import BufferRef
from lethe.ingest.registrable import TAIL_BYTES
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.support.registering import Registering, a_file
from tests.spark.support.story import ALL_GONE
from tests.support.builders import a_request
from tests.support.lake import Lake
from tests.support.servers.s3 import S3


def test_objects_of_a_bucket_are_registered_read_and_gone_with_their_last_snapshot(
    spark: SparkSession, lake: Lake, s3: S3, tmp_path: Path
) -> None:
    """Whatever their names; of a large object only the end is fetched for its footer."""
    bucket = s3.bucket("lake")
    s3.bucket("buffer")
    home = {"uri": f"sqlite:///{tmp_path}/s3.db", "warehouse": f"s3://{bucket}/wh"}
    lake.add_catalog("s3lake", type="sql", **home, **s3.properties(), **{"s3.path-style-access": "true"})
    make_session("s3lake")
    story = Registering.begin(spark, lake, (), "s3lake")
    assert isinstance(story, Registering)
    buffer = BufferRef(uri="s3://buffer/air")
    large = pa.table({"v": range(100_000), "day": pa.repeat(pa.scalar(1, pa.int32()), 100_000)})
    for name, rows in (("A", large), ("B é", a_file("B é", 1).drop_columns(["batch_id"]))):
        batch_id = pa.repeat(pa.scalar(name), rows.num_rows)
        out = pa.BufferOutputStream()
        pq.write_table(rows.append_column("batch_id", batch_id), out, row_group_size=30_000)
        content = out.getvalue().to_pybytes()
        assert (len(content) > TAIL_BYTES) == (name == "A")
        s3.put("buffer", f"air/{batch_folder('batch_id', name)}/sub é/part %2F+0.parquet", content)
        s3.put("buffer", f"air/{batch_folder('batch_id', name)}/{names.SUCCESS_MARKER}")

    result = story.run(story.registration("A", "B é", buffer=buffer))

    assert (result.batches_promoted, result.files_added, result.rows_added) == (2, 2, 100_002)
    assert spark.table(story.full_name).where("batch_id = 'A'").agg({"v": "max"}).collect()[0][0] == 99_999
    assert story.table().scan(row_filter="batch_id = 'B é'").to_arrow().num_rows == 2
    story.run(story.restatement(a_request("revert", batch_ids=("A",)), buffer=buffer))
    story.run(story.vacuuming(ALL_GONE, buffer=buffer))
    assert [k for k in s3.keys("buffer") if "batch_id=A/" in k] == ["air/batch_id=A/_SUCCESS"]
    assert lethe.scan(story.full_name).to_arrow().num_rows == 2
