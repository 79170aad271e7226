#!/usr/bin/env python3
"""Archive the classes that a driver loads. Later JVMs map the archive instead of reading, parsing and verifying the classes.

    archive_classes.py

Runs a small driver that does what every run does. At its exit the JVM writes the loaded classes beside the jars (Java's
class-data sharing, JEP 350). An archive works only with the same Java and the same jars in the same order; other JVMs ignore it.
An archive that works is not made again. This also runs during the build of the image, before Lethe is in it, so it uses only
PySpark and `lethe_spark.run.launching`.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lethe_spark.run.launching import ARCHIVE, class_path, jar_folders, launch_confs
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext, StorageLevel
from pyspark.sql import SparkSession

CLOSED = "127.0.0.1:9"  # a closed port: clients are loaded, and fail to connect
CONFS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "pyspark.daemon",  # Lethe's daemon is not in the image yet
    "spark.sql.catalog.here": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.here.type": "hadoop",
}


def fits(archive: Path, jars: list[str]) -> bool:
    """Whether the Java on the PATH can use the archive."""
    if not archive.exists():
        return False
    java = ["java", "-Xshare:on", f"-XX:SharedArchiveFile={archive}", "-cp", os.pathsep.join(jars), "-version"]
    return subprocess.run(java, capture_output=True, timeout=60).returncode == 0


def make(archive: Path, scratch: str) -> None:
    """Run a driver, and wait until its JVM has written the archive."""
    archive.unlink(missing_ok=True)  # a JVM that uses an archive cannot write another
    part = Path(scratch, archive.name)
    confs = launch_confs(
        {
            **CONFS,
            "spark.sql.catalog.here.warehouse": f"file://{scratch}/warehouse",
            "spark.driver.extraJavaOptions": f"-XX:ArchiveClassesAtExit={part} -Xlog:cds=off -Xlog:cds+dynamic=off",
        },
        os.environ,
    )
    context = SparkContext(conf=SparkConf().setAll(list(confs.items())))
    gateway = context._gateway
    assert gateway is not None
    context.setLogLevel("OFF")
    drive(SparkSession.builder.getOrCreate())
    context.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()  # the JVM exits now
    gateway.proc.wait(timeout=300)
    part.rename(archive)


def drive(spark: SparkSession) -> None:
    """Do what each run does, so that its classes are loaded.

    It creates, writes, reads and changes a table, reads its metadata, moves rows of Python between tasks, and loads the
    clients of an object store and a database.
    """
    spark.sql("CREATE TABLE here.a.t (v BIGINT, day INT, b STRING) USING iceberg PARTITIONED BY (day)")
    rows = spark.createDataFrame([(1, 1, "a"), (2, 2, "b")], "v BIGINT, day INT, b STRING")
    for _ in range(2):
        rows.sortWithinPartitions("day", "b").writeTo("here.a.t").append()
    spark.table("here.a.t").join(rows, "b", "left_anti").groupBy("day").count().collect()
    spark.sql("DELETE FROM here.a.t WHERE b = 'a'")
    spark.sql("SELECT * FROM here.a.t.files").collect()
    spark.sql(
        "CALL here.system.expire_snapshots(table => 'a.t', older_than => TIMESTAMP '2000-01-01 00:00:00')"
    ).collect()
    pairs = spark.sparkContext.parallelize([(0, b"0"), (1, b"1")], 2).mapPartitions(lambda of_one: of_one)
    pairs.persist(StorageLevel.DISK_ONLY)
    pairs.partitionBy(2, int).values().collect()
    pairs.unpersist()
    java = spark._jvm
    assert java is not None
    store = java.java.util.HashMap()
    for key, value in {
        "client.region": "us-east-1",
        "s3.endpoint": f"http://{CLOSED}",
        "s3.access-key-id": "nobody",
        "s3.secret-access-key": "nothing",
        "s3.path-style-access": "true",
        "s3.retry.num-retries": "0",
    }.items():
        store.put(key, value)
    files = java.org.apache.iceberg.aws.s3.S3FileIO()
    files.initialize(store)
    expect_failure(lambda: files.newInputFile("s3://nowhere/nothing").exists())
    files.close()
    expect_failure(
        lambda: java.java.sql.DriverManager.getConnection(f"jdbc:postgresql://{CLOSED}/nowhere?connectTimeout=1")
    )
    expect_failure(
        lambda: java.org.apache.iceberg.CatalogUtil.loadCatalog(
            "org.apache.iceberg.jdbc.JdbcCatalog", "no", store, None
        )
    )


def expect_failure(ask: Callable[[], object]) -> None:
    """Send a request that must fail, to load the classes that it needs."""
    try:
        ask()
    except Py4JJavaError:
        return
    raise AssertionError(f"{ask} succeeded; expected an error, which loads the classes of errors")


def main() -> None:
    """Make the archive beside the jars, unless it is there for these jars, this Java and this program."""
    folders = jar_folders(os.environ)
    archive = Path(folders[0], ARCHIVE)
    if fits(archive, class_path(folders)):
        return
    print(f"archiving the classes of a driver in {archive}", file=sys.stderr, flush=True)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(
        dir=archive.parent
    ) as scratch:  # on the same file system, so that the rename is atomic
        make(archive, scratch)
    assert fits(archive, class_path(folders)), f"Java cannot use {archive}"


if __name__ == "__main__":
    main()
