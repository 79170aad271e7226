#!/usr/bin/env python3
"""Archive the classes that a driver loads, so that each JVM after it maps them instead of reading, parsing and verifying them.

    archive_classes.py

A small driver goes through what every run goes through, and the JVM writes what it has loaded at its exit (Java's class-data
sharing, JEP 350) beside the jars. An archive is of use to the same Java with the same jars in the same order; one that is there
and fits is not made again, and one that does not fit slows nobody down. This also runs while the image is being built, before
Lethe itself is in it: only PySpark and `lethe_spark.run.launching` are used.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from lethe_spark.run.launching import ARCHIVE, class_path, jar_folders, launch_confs
from py4j.protocol import Py4JJavaError
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

CLOSED = "127.0.0.1:9"  # nobody listens there: clients are loaded and ask in vain
CONFS = {
    "spark.master": "local[2]",
    "spark.driver.memory": "768m",
    "spark.sql.shuffle.partitions": "2",
    "spark.python.daemon.module": "pyspark.daemon",  # Lethe's own is not there yet
    "spark.sql.catalog.here": "org.apache.iceberg.spark.SparkCatalog",
    "spark.sql.catalog.here.type": "hadoop",
}


def fits(archive: Path, jars: list[str]) -> bool:
    """Whether the Java that is on the PATH can use it."""
    if not archive.exists():
        return False
    java = ["java", "-Xshare:on", f"-XX:SharedArchiveFile={archive}", "-cp", os.pathsep.join(jars), "-version"]
    return subprocess.run(java, capture_output=True, timeout=60).returncode == 0


def make(archive: Path, scratch: str) -> None:
    """Run a driver, and wait until its JVM has written the archive."""
    archive.unlink(missing_ok=True)  # one cannot be made on top of another
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
    gateway.proc.stdin.close()  # which is when it exits
    gateway.proc.wait(timeout=300)
    part.rename(archive)


def drive(spark: SparkSession) -> None:
    """A bit of everything: a table is made, written, read, changed, looked at; the clients of a store and a database load."""
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
    in_vain(lambda: files.newInputFile("s3://nowhere/nothing").exists())
    files.close()
    in_vain(lambda: java.java.sql.DriverManager.getConnection(f"jdbc:postgresql://{CLOSED}/nowhere?connectTimeout=1"))
    in_vain(
        lambda: java.org.apache.iceberg.CatalogUtil.loadCatalog(
            "org.apache.iceberg.jdbc.JdbcCatalog", "no", store, None
        )
    )


def in_vain(ask: Callable[[], object]) -> None:
    """Ask something that nobody can answer here, for the classes that asking takes."""
    try:
        ask()
    except Py4JJavaError:
        return
    raise AssertionError(f"{ask} was answered")


def main() -> None:
    folders = jar_folders(os.environ)
    archive = Path(folders[0], ARCHIVE)
    if fits(archive, class_path(folders)):
        return
    print(f"archiving the classes of a driver in {archive}", file=sys.stderr, flush=True)
    os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
    os.environ["PYSPARK_PYTHON"] = sys.executable
    with tempfile.TemporaryDirectory(dir=archive.parent) as scratch:  # on one file system, so that it appears whole
        make(archive, scratch)
    assert fits(archive, class_path(folders)), f"Java does not take {archive}"


if __name__ == "__main__":
    main()
