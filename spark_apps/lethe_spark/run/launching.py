"""The settings to start a JVM with: Spark's settings for a driver, or the class path for a JVM without one. I/O.

None of the settings is a secret: all of them may be on a command line.
"""

import glob
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from pyspark.find_spark_home import _find_spark_home

EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
JARS_ENV: Final = "LETHE_JARS"
"""The variable with a folder of jars for runs outside the image, whose jars lie in $SPARK_HOME/jars."""
MEMORY_ENV: Final = "LETHE_DRIVER_MEMORY"
"""The variable with the size of the driver's heap, such as 1g."""
WORKER_DAEMON: Final = "lethe_spark.apps.worker_daemon"
DEFAULT_JARS: Final = "~/.cache/lethe/jars"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
QUICK_START: Final = "-XX:TieredStopAtLevel=1"
"""For a JVM that lives for seconds, or whose work Python does: Java's second compiler would take more time than it saves."""
ADDRESSES: Final = ("spark.driver.host", "spark.driver.bindAddress")
"""Settings of which Kubernetes sets the value, as it writes the address of a pod."""
NO_DUMPS: Final = ("-XX:-CreateCoredumpOnCrash", "-XX:-HeapDumpOnOutOfMemoryError")
"""The memory of a run holds values of rows, also erased ones. It must not get onto a disk. See `lethe_spark.run.core_dumps`."""
AZURE_CLIENT: Final = "-Djdk.httpclient.allowRestrictedHeaders=content-length"
"""Java's HTTP client sets this header itself. Without the option, Azure's library warns of it for each file."""
LOCAL_FILES_JAR: Final = "/hadoop-bare-naked-local-fs-"
"""In the path of a jar that only the folder of jars outside the image has."""
LOCAL_FILES: Final = "com.globalmentor.apache.hadoop.fs.BareLocalFileSystem"
"""The class of that jar. Hadoop's own starts a process (`chmod`) for each local file that it creates, which takes 15 ms."""
ARCHIVE: Final = "classes.jsa"
"""The file, in the folder of the jars, that archive_classes.py makes."""


def launch_confs(confs: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, str]:
    """The Spark settings to start the JVM with: `confs`, and defaults for other settings."""
    scratch = environ.get("SPARK_LOCAL_DIRS", "").split(",")[0] or tempfile.gettempdir()
    defaults = {
        "spark.app.name": "lethe",
        "spark.master": f"local[{os.cpu_count() or 1}]",
        "spark.sql.extensions": EXTENSIONS,
        # Without this, Spark reads no table with such a column, also if nobody asks for it.
        "spark.sql.geospatial.enabled": "true",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.catalogImplementation": "in-memory",
        "spark.sql.warehouse.dir": f"file://{scratch}/spark-warehouse",
        "spark.jars.ivy": f"{tempfile.gettempdir()}/.ivy2",
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": WORKER_DAEMON,
        # Blocks of rows are compressed (`lethe.writing.tasks`). Pyspark's default would compress them again.
        "spark.rdd.compress": "false",
    }
    if memory := environ.get(MEMORY_ENV):
        defaults["spark.driver.memory"] = memory
    settings = defaults | dict(confs)
    for name in ADDRESSES:
        if name in settings:
            settings[name] = in_brackets(settings[name])
    if settings["spark.master"].startswith("local"):
        settings.setdefault("spark.driver.host", "127.0.0.1")
        settings.setdefault("spark.driver.bindAddress", "127.0.0.1")
        # A process that connects to a port of Spark can run code. With this, Spark requires a secret that no other process knows.
        settings.setdefault("spark.authenticate", "true")
    folders = jar_folders(environ)
    settings.setdefault("spark.driver.extraClassPath", os.pathsep.join(class_path(folders)))
    if LOCAL_FILES_JAR in settings["spark.driver.extraClassPath"]:
        settings.setdefault("spark.hadoop.fs.file.impl", LOCAL_FILES)
    # user.home: if the uid has no passwd entry, Java sets it to "?", and libraries write to a folder of that name.
    folders_of_java = f"-Djava.io.tmpdir={scratch} -Duser.home={tempfile.gettempdir()}"
    options = " ".join((*NO_DUMPS, folders_of_java, "-Duser.timezone=UTC", AZURE_CLIENT))
    if os.path.exists(archive := f"{folders[0]}/{ARCHIVE}"):
        options = f"{' '.join(archive_options(archive))} {options}"
    return with_java_options(settings, options)


def in_brackets(address: str) -> str:
    """An address as Spark wants it: IPv6 in brackets."""
    return f"[{address}]" if ":" in address and not address.startswith("[") else address


def with_java_options(confs: Mapping[str, str], options: str) -> dict[str, str]:
    """The settings with these options before those that they have."""
    return {**confs, JAVA_OPTIONS: f"{options} {confs.get(JAVA_OPTIONS, '')}".strip()}


def jar_folders(environ: Mapping[str, str]) -> list[str]:
    """The folders of jars: one folder in the image; elsewhere Lethe's folder and Spark's."""
    spark = _spark_jars(environ)
    if environ.get(JARS_ENV) or not _in_image(spark):
        return [environ.get(JARS_ENV) or str(Path(DEFAULT_JARS).expanduser()), spark]
    return [spark]


def lacks_iceberg(confs: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Whether neither these settings nor Spark's own folder of jars name Iceberg's runtime."""
    named = (confs.get(key, "") for key in ("spark.jars", "spark.jars.packages", "spark.driver.extraClassPath"))
    return not any("iceberg-spark-runtime" in value for value in named) and not _in_image(_spark_jars(environ))


def _spark_jars(environ: Mapping[str, str]) -> str:
    return f"{environ.get('SPARK_HOME') or _find_spark_home()}/jars"


def _in_image(spark_jars: str) -> bool:
    """Whether Spark's folder of jars has Iceberg's runtime, as in the image."""
    return bool(glob.glob(f"{spark_jars}/iceberg-spark-runtime-*.jar"))


def class_path(folders: list[str]) -> list[str]:
    """The jars in a fixed order.

    A JVM can use an archive of classes only with the same jars in the same order. With `folder/*`, which Spark passes to Java,
    the order depends on the file system.
    """
    return [jar for folder in folders for jar in sorted(glob.glob(f"{folder}/*.jar"))]


def archive_options(archive: str) -> list[str]:
    """The options with which Java uses an archive of classes.

    If the archive does not match the jars, Java loads the classes from the jars, without a message.
    """
    return [f"-XX:SharedArchiveFile={archive}", "-Xlog:cds=off", "-Xlog:cds+dynamic=off"]
