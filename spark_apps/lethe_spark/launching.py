"""What a JVM is started with: Spark's settings for a driver's, or for one that has no session. Looks at folders of jars only.

Nothing here is a secret: all of it may stand on a command line.
"""

import glob
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
JARS_ENV: Final = "LETHE_JARS"  # a folder of jars for runs outside the image, whose jars lie in $SPARK_HOME/jars
MEMORY_ENV: Final = "LETHE_DRIVER_MEMORY"  # the driver's heap, e.g. 1g
WORKER_DAEMON: Final = "lethe_spark.worker_daemon"
DEFAULT_JARS: Final = "~/.cache/lethe/jars"


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
