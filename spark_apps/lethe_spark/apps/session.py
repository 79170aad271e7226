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
from lethe.uri import Backend, backend_of
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lethe_spark.jvm.gateway import has_class
from lethe_spark.run import rpc_secret
from lethe_spark.run.launching import launch_confs
from lethe_spark.sql import folder_server

# The client libraries that Iceberg's FileIO of a store needs, and that are not in the image.
_CLIENTS: Final[Mapping[Backend | None, str]] = {
    Backend.GCS: "com.google.cloud.storage.Storage",
    Backend.AZURE: "com.azure.storage.file.datalake.DataLakeFileSystemClient",
}


def make_session(catalog: str, confs: Mapping[str, str] | None = None) -> SparkSession:
    """Make or get the session of this process, with `catalog` configured as in `.pyiceberg.yaml`.

    Example: `spark = lethe_spark.make_session("main")`

    Args:
        catalog: The name of the catalog, for PyIceberg and for Spark.
        confs: Spark settings (`spark.master`, sizes, …). They override the defaults. Ignored if the process has a session.
    Returns: the session. A second call with another catalog adds the catalog to it.
    Raises: InputError: `UnknownCatalog`; `UnsupportedCatalog`, also if a jar for its store is missing; `CatalogNotServed`, if the
        catalog has type hadoop and an existing session has Spark's own catalog of that name.
    """
    properties = catalogs.properties(catalog)
    settings = {} if catalogs.is_folder(properties) else catalogs.spark_properties(catalog, properties)
    context = SparkContext._active_spark_context or _start(launch_confs(_with_secret(confs or {}), os.environ))
    context.setLogLevel("WARN")
    session = SparkSession.builder.getOrCreate()
    if catalogs.is_folder(properties):
        settings = folder_server.serve(session, catalog, properties)
    _require_client(session, catalog, properties)
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


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
    return {**confs, **rpc_secret.provide(os.environ)}


def _start(confs: Mapping[str, str]) -> SparkContext:
    os.environ.setdefault("SPARK_LOCAL_DIRS", tempfile.gettempdir())
    if confs["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Python workers import this package, and do not inherit sys.path.
    source = str(Path(__file__).resolve().parents[2])
    known = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != source]
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *known])
    return SparkContext(conf=SparkConf().setAll(list(confs.items())))
