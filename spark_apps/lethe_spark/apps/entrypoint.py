"""What a container of the Spark image does: `driver` runs one of Lethe's applications, `executor` serves a driver, `committer`
carries out what needs no Spark, and anything else is run as it is. tini is process 1, so that SIGTERM reaches the program and no
orphan is left unreaped.

The image starts this with `python3 -I`, which hears of no variable, and not with a shell, which does. What it starts finds the
paths that belong to the image, whatever the pod says of them, and none of the variables by which a loader, a shell, a JVM, Python
or Spark's scripts run other code. The operator's list of allowed variables is the first line; this is the second. The dynamic
loader reads its own variables (LD_…) before any program can drop them.

Standard library only, and nothing of Lethe: it runs before any of that.
"""

import glob
import os
import sys
from collections.abc import Mapping, Sequence
from typing import Final

TINI: Final = "/usr/bin/tini"
JAVA: Final = "/usr/bin/java"
PYTHON: Final = "/opt/lethe/bin/python"
SPARK_HOME: Final = "/opt/lethe/spark"
# What belongs to the image.
OWN: Final = {
    "PATH": "/opt/lethe/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": "/opt/lethe/app",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HOME": "/tmp",
    "SPARK_HOME": SPARK_HOME,
}
# Beginnings of the names of variables by which other code is run, or another configuration read.
DROPPED: Final = (
    "BASH", "SHELLOPTS", "PS4", "IFS", "CDPATH", "GLOBIGNORE",
    "LD_", "GCONV_PATH", "GLIBC_TUNABLES", "MALLOC_", "LOCPATH", "NLSPATH", "OPENSSL_", "SSLKEYLOGFILE",
    "PYTHON", "PYSPARK_", "JAVA_", "_JAVA_", "JDK_", "CLASSPATH", "HADOOP_", "YARN_", "HIVE_", "PYICEBERG_CATALOG__",
)  # fmt: skip
# Of Spark's own only what the operator and a driver set.
OF_SPARK: Final = (
    "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP", "SPARK_USER", "SPARK_APPLICATION_ID", "SPARK_DRIVER_", "SPARK_EXECUTOR_",
    "SPARK_RESOURCE_PROFILE_ID", "SPARK_JAVA_OPT_",
)  # fmt: skip
JAVA_OPTION: Final = "SPARK_JAVA_OPT_"


def environment(found: Mapping[str, str]) -> dict[str, str]:
    """The variables with which the program is started. Pure."""
    kept = {k: v for k, v in found.items() if not k.startswith(DROPPED) and k != "ENV"}
    kept = {k: v for k, v in kept.items() if not k.startswith("SPARK_") or k.startswith(OF_SPARK)}
    return {**kept, **OWN}


def command(arguments: Sequence[str], environ: Mapping[str, str], jars: Sequence[str]) -> list[str]:
    """What process 1 runs. Pure.

    Args:
        jars: Spark's, in any order.
    Raises: KeyError, for an executor that its driver has not told something.
    """
    match arguments:
        case ["driver", *rest]:
            return [PYTHON, "-m", "lethe_spark.apps.app", *rest]
        case ["committer", *rest]:
            return [PYTHON, "-m", "lethe_spark.committer", *rest]
        case ["executor", *_]:
            return _executor(environ, jars)
    return [*arguments]


def _executor(environ: Mapping[str, str], jars: Sequence[str]) -> list[str]:
    told = {int(k.removeprefix(JAVA_OPTION)): v for k, v in environ.items() if k.startswith(JAVA_OPTION)}
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    # As lethe_spark.run.launching has them: an archive of classes is for the same jars in the same order.
    path = [*sorted(jars), "/opt/lethe/conf"]
    return [
        JAVA,
        *(told[n] for n in sorted(told)),
        f"-XX:SharedArchiveFile={SPARK_HOME}/jars/classes.jsa",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
        f"-Xms{memory}",
        f"-Xmx{memory}",
        # Spark reads a secret from a file only where it knows its master, and an executor learns that from its driver, which
        # answers only those who know the secret.
        "-Dspark.master=k8s://",
        "-cp",
        ":".join(path),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", environ["SPARK_DRIVER_URL"]),
        *("--executor-id", environ["SPARK_EXECUTOR_ID"]),
        *("--cores", environ["SPARK_EXECUTOR_CORES"]),
        *("--app-id", environ["SPARK_APPLICATION_ID"]),
        *("--hostname", environ["SPARK_EXECUTOR_POD_IP"]),
        *("--resourceProfileId", environ["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", environ["SPARK_EXECUTOR_POD_NAME"]),
    ]


def main() -> None:
    clean = environment(os.environ)
    wanted = command(sys.argv[1:], clean, glob.glob(f"{SPARK_HOME}/jars/*.jar"))
    os.execve(TINI, ["tini", "--", *wanted], clean)


if __name__ == "__main__":
    main()
