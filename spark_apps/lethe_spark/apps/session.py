"""Make a SparkSession for one catalog. I/O: starts a JVM.

Invariant: no secret is part of a command line or of Spark's configuration file. The settings of the catalog, with its
credentials, are set on the session after the JVM has started. Iceberg sends them to executors in its serialized tables.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lethe.base.errors import InputError
from lethe.iceberg import catalogs
from lethe.jars.provide import FOLDER_ENV, provide
from lethe.uri import Backend, backend_of
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lethe_spark.jvm.gateway import activate, has_class
from lethe_spark.run import java, rpc_secret
from lethe_spark.run.launching import lacks_iceberg, launch_confs
from lethe_spark.sql import folder_server, rest_guard

# The client libraries that Iceberg's FileIO of a store needs, and that are not in the image.
_CLIENTS: Final[Mapping[Backend | None, str]] = {
    Backend.GCS: "com.google.cloud.storage.Storage",
    Backend.AZURE: "com.azure.storage.file.datalake.DataLakeFileSystemClient",
}


def make_session(catalog: str, confs: Mapping[str, str] | None = None, fresh: bool = False) -> SparkSession:
    """Make or get the session of this process, with `catalog` configured as in `.pyiceberg.yaml`.

    Example: `spark = lethe_spark.make_session("main")`

    Args:
        catalog: The name of the catalog, for PyIceberg and for Spark.
        confs: Spark settings (`spark.master`, sizes, …). They override the defaults. Ignored if the process has a session.
        fresh: Make a new session, without the settings, views and opened catalogs of earlier ones in this process.
    Returns: the session. A second call with another catalog adds the catalog to it, unless `fresh`.
    Raises: InputError: `UnknownCatalog`; `UnsupportedCatalog`, also if a jar for its store is missing; `CatalogNotServed`, if the
        catalog has type hadoop and an existing session has Spark's own catalog of that name; `UnsupportedSpark`, `JavaMissing`,
        `UnsupportedJava`, `JarsMissing`. TransientError: `JarsNotDownloaded`.
    """
    properties = catalogs.properties(catalog)
    settings = {} if catalogs.is_folder(properties) else rest_guard.spark_properties(catalog, properties)
    session = started_session(confs)
    if fresh:
        session = session.newSession()
        activate(session)
    if catalogs.is_folder(properties):
        settings = folder_server.serve(session, catalog, properties)
    _require_client(session, catalog, properties)
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def started_session(confs: Mapping[str, str] | None = None) -> SparkSession:
    """Make or get the session of this process, without a catalog."""
    context = SparkContext._active_spark_context or _start(confs or {})
    context.setLogLevel("WARN")
    return SparkSession.builder.getOrCreate()


def _require_client(session: SparkSession, catalog: str, properties: Mapping[str, str]) -> None:
    """Raises: InputError (`UnsupportedCatalog`), if Iceberg cannot open files of the warehouse without a further jar."""
    warehouse = properties.get("warehouse", "")
    client = _CLIENTS.get(backend_of(warehouse))
    if client is not None and "spark.io-impl" not in properties and not has_class(session, client):
        raise InputError(
            "UnsupportedCatalog",
            f"catalog {catalog} has its warehouse in {warehouse}, and Spark's class path has no {client}, which Iceberg needs "
            "to open files there. See docs/stores.md for stores and their jars, or use another warehouse.",
        )


def _with_secret(confs: Mapping[str, str]) -> dict[str, str]:
    """The settings with the secret for executors, if there are any."""
    return {**confs, **(rpc_secret.provide(os.environ) if confs.get("spark.master", "").startswith("k8s:") else {})}


def _forget_earlier() -> None:
    """Remove what an earlier context of this process left in the JVM: its settings, which Spark would take as defaults, and the
    secret of a driver that works alone, which Spark would prefer to the one that executors have."""
    gateway = SparkContext._gateway
    if gateway is None:
        return
    system = gateway.jvm.java.lang.System
    for name in list(system.getProperties().stringPropertyNames()):
        if name.startswith("spark."):
            system.clearProperty(name)
    # Hadoop's user keeps the secret. A new login has none.
    gateway.jvm.org.apache.hadoop.security.UserGroupInformation.loginUserFromSubject(None)


def _start(wanted: Mapping[str, str]) -> SparkContext:
    """Raises: as `make_session`, for Spark, Java and jars."""
    java.check_spark()
    java.provide_java()
    environ = dict(os.environ)
    if lacks_iceberg(wanted, environ):
        environ[FOLDER_ENV] = str(provide(environ))
    confs = launch_confs(_with_secret(wanted), environ)
    os.environ.setdefault("SPARK_LOCAL_DIRS", tempfile.gettempdir())
    if confs["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Python workers import this package, and do not inherit sys.path.
    source = str(Path(__file__).resolve().parents[2])
    known = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != source]
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *known])
    _forget_earlier()
    return SparkContext(conf=SparkConf().setAll(list(confs.items())))
