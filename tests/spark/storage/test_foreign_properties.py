"""Tables and REST catalogs whose authors try to configure the JVM of a run: nothing connects to where they point, nothing they
name is loaded, and no log shows their values. What would have to be followed is refused by name."""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lethe
import lethe_spark
import pytest
from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe_spark.apps.session import make_session
from lethe_spark.jvm.gateway import gateway
from lethe_spark.jvm.spark_table import SparkTable
from lethe_spark.jvm.standalone_jvm import SmallJvm
from lethe_spark.sql import rest_servers
from pyspark.sql import SparkSession

from tests.spark.parameters import tuples
from tests.spark.support.story import ALL_GONE, Story, of_arrow, of_batches, of_spark
from tests.support.client_properties import of_java, unreviewed
from tests.support.foreign_properties import ENDS, canaries, poison
from tests.support.lake import Lake
from tests.support.servers import canary as canaries_of
from tests.support.servers.canary import Canary
from tests.support.servers.faults import Switch
from tests.support.servers.faulty_proxy import before, forward_to
from tests.support.servers.s3 import S3

RESOLVING = "org.apache.iceberg.io.ResolvingFileIO"
HOSTS = {"s3.endpoint": "http://127.0.0.1:9", "gcs.service.host": "http://127.0.0.1:9"}


@pytest.fixture
def canary() -> Iterator[Canary]:
    with canaries_of.listening() as found:
        yield found


@pytest.fixture(autouse=True)
def _local_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """The buffers here are local folders, although the tables are in S3."""
    monkeypatch.setattr(catalogs, "is_local", lambda _: True)


@contextmanager
def log_of(spark: SparkSession, file: Path) -> Iterator[Path]:
    """What the JVM logs from INFO on meanwhile."""
    api = spark._jvm.org.apache.logging.log4j  # type: ignore[union-attr]
    layout = api.core.layout.PatternLayout.createDefaultLayout()
    appender = (
        api.core.appender.FileAppender.newBuilder().setName("foreign").withFileName(str(file)).setLayout(layout).build()
    )
    appender.start()
    root, level = api.LogManager.getRootLogger(), api.LogManager.getRootLogger().getLevel()
    root.addAppender(appender)
    api.core.config.Configurator.setRootLevel(api.Level.INFO)
    try:
        yield file
    finally:
        api.core.config.Configurator.setRootLevel(level)
        root.removeAppender(appender)
        appender.stop()


@contextmanager
def answering(server: str, answers: Mapping[str, str], *only: str) -> Iterator[str]:
    """The address of Iceberg's server, whose answers have further properties wherever they can, or `only` there."""
    forward = forward_to(server)

    def answer(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        plain = {k: v for k, v in headers.items() if k.lower() != "accept-encoding"}
        status, found, content = forward(method, path, plain, body)
        if status != 200 or not content.startswith(b"{"):
            return status, found, content
        document = json.loads(content)
        if only and not set(only) & document.keys():
            return status, found, content
        if "defaults" in document:
            document |= {
                "defaults": {**document["defaults"], **answers},
                "overrides": {**document["overrides"], **answers},
            }
        elif "metadata" in document:
            document["config"] = {**document.get("config", {}), **answers}
            document["storage-credentials"] = [{"prefix": p, "config": dict(answers)} for p in ("s3://", "file:", "/")]
        kept = [(k, v) for k, v in found if k.lower() not in ("content-encoding", "content-length")]
        return status, kept, json.dumps(document).encode()

    with before(answer) as proxy:
        yield proxy.endpoint


def test_each_property_that_icebergs_java_library_reads_was_reviewed() -> None:
    jars = Path(os.environ.get("LETHE_JARS", "~/.cache/lethe/jars")).expanduser()
    (runtime,) = jars.glob("iceberg-spark-runtime-*.jar")

    assert not unreviewed("java", set().union(*of_java(runtime).values()))


def test_a_table_does_not_configure_the_jvm_of_its_runs(
    spark: SparkSession, lake: Lake, s3: S3, canary: Canary, tmp_path: Path
) -> None:
    bucket = s3.bucket("poisoned")
    own = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/c.db",
        "warehouse": f"s3://{bucket}/wh",
        "init_catalog_tables": "true",
    }
    lake.add_catalog("poisoned", **own, **s3.properties(), **{"s3.path-style-access": "true"})
    catalogs.load("poisoned").create_namespace("air")
    make_session("poisoned")
    story = Story.begin(spark, lake, ("day",), "poisoned").filled("AB")
    harmful = canaries(canary, "configuration", "from-catalog")
    del harmful["parquet.crypto.factory.class"]  # refused, see below
    poison(story.table(), harmful, s3.properties())

    with log_of(spark, tmp_path / "jvm.log") as log:
        story.filled("C")
        story.revert("A")
        story.vacuum(ALL_GONE)
        assert of_spark(lethe_spark.read(spark, story.full_name)) == of_batches("B", "C")
        assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("B", "C")

    assert story.table().properties.items() >= harmful.items()
    assert canary.heard == []
    assert "INFO" in log.read_text() or log.read_text()
    assert canary.uri not in log.read_text()
    assert ENDS not in log.read_text()


@pytest.mark.parametrize(
    ("name", "value"),
    tuples(
        [
            ("write.location-provider.impl", ENDS),
            ("write.py-location-provider.impl", ENDS),
            ("parquet.crypto.factory.class", ENDS),
            ("write.data.path", "hdfs://127.0.0.1:1/x"),
        ],
        ("write.location-provider.impl", ENDS),
        ("write.data.path", "hdfs://127.0.0.1:1/x"),
    ),
)
def test_a_table_that_the_jvm_would_follow_is_refused_by_name(
    spark: SparkSession, lake: Lake, name: str, value: str
) -> None:
    story = Story.begin(spark, lake).filled("A")
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('{name}' = '{value}')")

    story.put("B")
    for act in (lambda: story.consolidate("B"), lambda: lethe_spark.read(spark, story.full_name)):
        with pytest.raises(InputError, match=f"UnsafeProperty: {story.full_name}: the table property {name} ") as e:
            act()
        assert value not in e.value.message


def test_a_table_that_becomes_so_is_refused_at_the_next_look(spark: SparkSession, lake: Lake) -> None:
    story = Story.begin(spark, lake).filled("A")
    handle = SparkTable.load(spark, story.catalog, story.name)
    assert handle is not None
    spark.sql(f"ALTER TABLE {story.full_name} SET TBLPROPERTIES ('write.location-provider.impl' = '{ENDS}')")

    with pytest.raises(InputError, match="UnsafeProperty"):
        handle.refresh()


def test_a_catalog_of_a_tenant_does_not_configure_the_jvm(
    spark: SparkSession, lake: Lake, rest: Switch, canary: Canary, tmp_path: Path
) -> None:
    assert rest.fault is None
    server = str(catalogs.properties("rest")["uri"])
    with answering(server, canaries(canary, "refused", "configuration")) as uri:
        lake.add_catalog("tenant", type="rest", uri=uri, **HOSTS, **{"spark.io-impl": RESOLVING})
        with log_of(spark, tmp_path / "jvm.log") as log:
            make_session("tenant")
            story = Story.begin(spark, lake, ("day",), "tenant").filled("AB")
            story.revert("A")
            assert of_spark(lethe_spark.read(spark, story.full_name)) == of_batches("B")
            assert of_arrow(lethe.scan(story.full_name).to_arrow()) == of_batches("B")
            handle = SparkTable.load(spark, "tenant", story.name)
            assert handle is not None
            in_committer = _as_committer(spark, "tenant").load(story.name)
            assert in_committer is not None

        for java in (handle.java, in_committer.java):
            assert str(java.io().getClass().getName()) == RESOLVING
            found = {str(k): str(v) for k, v in dict(java.io().properties()).items()}
            assert not [k for k, v in found.items() if canary.uri in v or ENDS in v]
    assert canary.heard == []
    assert canary.uri not in log.read_text()
    assert ENDS not in log.read_text()


def test_a_host_that_no_configuration_names_is_refused_by_name(
    spark: SparkSession, lake: Lake, rest: Switch, canary: Canary
) -> None:
    assert rest.fault is None
    server = str(catalogs.properties("rest")["uri"])
    make_session("rest")
    story = Story.begin(spark, lake, ("day",), "rest").filled("A")
    with answering(server, {"s3.endpoint": canary.uri}, "metadata") as uri:
        lake.add_catalog("unnamed", type="rest", uri=uri)
        make_session("unnamed")

        with pytest.raises(InputError, match=r"UnsafeProperty: .*the property s3\.endpoint\. ") as e:
            SparkTable.load(spark, "unnamed", story.name)

    assert canary.uri not in e.value.message
    assert canary.heard == []


def _as_committer(spark: SparkSession, catalog: str) -> Any:
    """The catalog as a process without Spark opens it, in the session's JVM."""
    prefix = f"spark.sql.catalog.{catalog}."
    conf = rest_servers.spark_properties(catalog, catalogs.properties(catalog))
    own = {k.removeprefix(prefix): v for k, v in conf.items() if k.startswith(prefix)}
    return SmallJvm(gateway(spark), None).open_catalog(catalog, own)  # type: ignore[arg-type]
