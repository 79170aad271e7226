"""A SparkSession for one catalog: from configuration to a running JVM. I/O: it starts a process.

Invariant: a secret never reaches a command line or Spark's own configuration file. What the JVM must know at its start
is passed at the start; everything about the catalog, credentials included, is set on the session afterwards, from where
Iceberg hands it to executors inside its serialized tables.
"""

import glob
import os
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from lethe.table import catalogs
from pyspark import SparkConf, SparkContext
from pyspark.sql import SparkSession

from lethe_spark import folder_server

EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
JARS_ENV: Final = "LETHE_JARS"  # a folder of jars for runs outside the image, whose jars lie in $SPARK_HOME/jars
MEMORY_ENV: Final = "LETHE_DRIVER_MEMORY"  # the driver's heap, e.g. 1g
WORKER_DAEMON: Final = "lethe_spark.worker_daemon"
DEFAULT_JARS: Final = "~/.cache/lethe/jars"


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
    context = SparkContext._active_spark_context or _start(launch_confs(dict(confs or {}), os.environ))
    context.setLogLevel("WARN")
    session = SparkSession.builder.getOrCreate()
    if catalogs.is_folder(properties):
        settings = folder_server.serve(session, catalog, properties)
    for key, value in settings.items():
        session.conf.set(key, value)
    return session


def launch_confs(confs: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """What the JVM is started with: defaults under `confs`. Looks only at the jars folder and the temporary one."""
    scratch = environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    defaults = {
        "spark.app.name": "lethe",
        "spark.master": f"local[{os.cpu_count() or 1}]",
        "spark.sql.extensions": EXTENSIONS,
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"file://{scratch}/spark-warehouse",
        "spark.jars.ivy": f"{tempfile.gettempdir()}/.ivy2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": WORKER_DAEMON,
    }
    if memory := environ.get(MEMORY_ENV):
        defaults["spark.driver.memory"] = memory
    wanted = defaults | dict(confs)
    if wanted["spark.master"].startswith("local"):
        wanted.setdefault("spark.driver.host", "127.0.0.1")
        wanted.setdefault("spark.driver.bindAddress", "127.0.0.1")
        if jars := _jars(environ):
            wanted.setdefault("spark.driver.extraClassPath", os.pathsep.join(jars))
    elif JARS_ENV in environ and (jars := _jars(environ)):
        wanted.setdefault("spark.driver.extraClassPath", os.pathsep.join(jars))
    # user.home: with a uid that has no passwd entry Java says "?", and libraries then write to a folder of that name.
    options = f"-Djava.io.tmpdir={scratch} -Duser.home={tempfile.gettempdir()} -Duser.timezone=UTC"
    wanted["spark.driver.extraJavaOptions"] = f"{options} {wanted.get('spark.driver.extraJavaOptions', '')}".strip()
    return wanted


def _jars(environ: Mapping[str, str]) -> list[str]:
    if folder := environ.get(JARS_ENV):
        return sorted(glob.glob(f"{folder}/*.jar"))
    if environ.get("SPARK_HOME") and glob.glob(f"{environ['SPARK_HOME']}/jars/iceberg-spark-runtime-*.jar"):
        return []
    return sorted(glob.glob(f"{Path(DEFAULT_JARS).expanduser()}/*.jar"))


def _start(confs: Mapping[str, str]) -> SparkContext:
    os.environ.setdefault("SPARK_LOCAL_DIRS", tempfile.gettempdir())
    if confs["spark.master"].startswith("local"):
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    os.environ["PYSPARK_PYTHON"] = os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
    # Python workers import this package too, and do not inherit sys.path.
    source = str(Path(__file__).resolve().parent.parent)
    known = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != source]
    os.environ["PYTHONPATH"] = os.pathsep.join([source, *known])
    return SparkContext(conf=SparkConf().setAll(list(confs.items())))
