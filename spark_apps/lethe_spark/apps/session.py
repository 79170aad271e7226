"""A SparkSession for one catalog: from configuration to a running JVM. I/O: it starts a process.

Invariant: a secret never reaches a command line or Spark's own configuration file. What the JVM must know at its start
is passed at the start; everything about the catalog, credentials included, is set on the session afterwards, from where
Iceberg hands it to executors inside its serialized tables.
"""

import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

from lethe.iceberg import catalogs
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lethe_spark.run import rpc_secret
from lethe_spark.run.launching import launch_confs
from lethe_spark.sql import folder_server


def make_session(catalog: str, confs: Mapping[str, str] | None = None) -> SparkSession:
    """The session of this process, with `catalog` configured as in `.pyiceberg.yaml`.

    Args:
        catalog: The catalog's name, the same for PyIceberg and Spark.
        confs: Spark settings (`spark.master`, sizes…); they win over the defaults here.
    Raises: InputError (`UnknownCatalog`, `UnsupportedCatalog`; `CatalogNotServed`, if there is a session already and its
        catalog of that name, of type hadoop, is Spark's own).
    """
    properties = catalogs.properties(catalog)
    settings = {} if catalogs.is_folder(properties) else catalogs.spark_properties(catalog, properties)
    context = SparkContext._active_spark_context or _start(launch_confs(_with_secret(confs or {}), os.environ))
    context.setLogLevel("WARN")
    session = SparkSession.builder.getOrCreate()
    if catalogs.is_folder(properties):
        settings = folder_server.serve(session, catalog, properties)
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def _with_secret(confs: Mapping[str, str]) -> dict[str, str]:
    return {**confs, **rpc_secret.provide(os.environ)}


def _start(confs: Mapping[str, str]) -> SparkContext:
    os.environ.setdefault("SPARK_LOCAL_DIRS", tempfile.gettempdir())
    if confs["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Python workers import this package too, and do not inherit sys.path.
    source = str(Path(__file__).resolve().parents[2])
    known = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != source]
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *known])
    return SparkContext(conf=SparkConf().setAll(list(confs.items())))
