"""The entry point of containers of the Spark image. Uses only the standard library, and nothing of Lethe.

`driver` runs one of Lethe's applications, `executor` serves a driver, `committer` runs the committer, `warm-driver` the driver
that stays up between runs, and any other command is run as given. tini is process 1: it forwards SIGTERM and reaps orphans. The
image starts this with `python3 -I`, which ignores environment variables, and not with a shell.
"""

import glob
import os
import resource
import sys
from collections.abc import Mapping, Sequence
from typing import Final

TINI: Final = "/usr/bin/tini"
JAVA: Final = "/usr/bin/java"
PYTHON: Final = "/opt/lethe/bin/python"
SPARK_HOME: Final = "/opt/lethe/spark"
OWN: Final = {
    "PATH": "/opt/lethe/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "PYTHONPATH": "/opt/lethe/app",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "HOME": "/tmp",
    "SPARK_HOME": SPARK_HOME,
}
"""Variables that the image sets."""
# Prefixes of variables that make a program run other code, or read another configuration.
DROPPED: Final = (
    "BASH", "SHELLOPTS", "PS4", "IFS", "CDPATH", "GLOBIGNORE",
    "LD_", "GCONV_PATH", "GLIBC_TUNABLES", "MALLOC_", "LOCPATH", "NLSPATH", "OPENSSL_", "SSLKEYLOGFILE",
    "PYTHON", "PYSPARK_", "JAVA_", "_JAVA_", "JDK_", "CLASSPATH", "HADOOP_", "YARN_", "HIVE_", "PYICEBERG_CATALOG__",
)  # fmt: skip
# Spark's variables that the operator and drivers set. All others are dropped.
OF_SPARK: Final = (
    "SPARK_LOCAL_DIRS", "SPARK_LOCAL_IP", "SPARK_USER", "SPARK_APPLICATION_ID", "SPARK_DRIVER_", "SPARK_EXECUTOR_",
    "SPARK_RESOURCE_PROFILE_ID", "SPARK_JAVA_OPT_",
)  # fmt: skip
JAVA_OPTION: Final = "SPARK_JAVA_OPT_"


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """The variables with which the program is started. Pure.

    The started program gets the image's own paths, whatever the pod sets, and none of the variables that make a loader, a shell,
    a JVM, Python or Spark's scripts run other code. The operator's list of allowed variables is the first line of defence, this
    is the second. It cannot drop the variables of the dynamic loader (LD_…) for itself, because the loader reads them first.
    """
    kept = {k: v for k, v in variables.items() if not k.startswith(DROPPED) and k != "ENV"}
    kept = {k: v for k, v in kept.items() if not k.startswith("SPARK_") or k.startswith(OF_SPARK)}
    return {**kept, **OWN}


def command(arguments: Sequence[str], environ: Mapping[str, str], jars: Sequence[str]) -> list[str]:
    """The command that process 1 runs. Pure.

    Args:
        jars: Spark's jars, in any order.

    Raises:
        KeyError: The driver has not set a variable of an executor.
    """
    match arguments:
        # spark-submit in cluster mode, for a SparkApplication. The settings of a run are among its arguments, so the file of
        # spark-submit is not needed, and the driver starts in the same way as that of a Job.
        case ["driver", "--properties-file", _, "--class", _, _, *rest] | ["driver", *rest]:
            return [PYTHON, "-m", "lethe_spark.apps.app", *rest]
        case ["committer", *rest]:
            return [PYTHON, "-m", "lethe_spark.committer", *rest]
        case ["warm-driver", *rest]:
            return [PYTHON, "-m", "lethe_spark.warm_driver", *rest]
        case ["executor", *_]:
            return _executor(environ, jars)
    return [*arguments]


def _executor(environ: Mapping[str, str], jars: Sequence[str]) -> list[str]:
    options = {int(k.removeprefix(JAVA_OPTION)): v for k, v in environ.items() if k.startswith(JAVA_OPTION)}
    memory = environ["SPARK_EXECUTOR_MEMORY"]
    # The same order as in lethe_spark.run.launching: an archive of classes requires the same jars in the same order.
    path = [*sorted(jars), "/opt/lethe/conf"]
    return [
        JAVA,
        *(options[n] for n in sorted(options)),
        # The memory of an executor holds values of rows. It must not get onto the disk of a node.
        "-XX:-CreateCoredumpOnCrash",
        "-XX:-HeapDumpOnOutOfMemoryError",
        f"-XX:SharedArchiveFile={SPARK_HOME}/jars/classes.jsa",
        "-Xlog:cds=off",
        "-Xlog:cds+dynamic=off",
        f"-Xms{memory}",
        f"-Xmx{memory}",
        # Spark reads a secret from a file only if it knows its master. An executor would learn the master from its driver, which
        # requires the secret.
        "-Dspark.master=k8s://",
        "-cp",
        ":".join(path),
        "org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend",
        *("--driver-url", environ["SPARK_DRIVER_URL"]),
        *("--executor-id", environ["SPARK_EXECUTOR_ID"]),
        *("--cores", environ["SPARK_EXECUTOR_CORES"]),
        *("--app-id", environ["SPARK_APPLICATION_ID"]),
        *("--hostname", f"[{host}]" if ":" in (host := environ["SPARK_EXECUTOR_POD_IP"]) else host),
        *("--resourceProfileId", environ["SPARK_RESOURCE_PROFILE_ID"]),
        *("--podName", environ["SPARK_EXECUTOR_POD_NAME"]),
    ]


def main() -> None:
    """Become tini, which runs the command for the arguments, without core dumps. Does not return.

    Raises:
        KeyError: The driver has not set a variable of an executor.
    """
    clean = environment(os.environ)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # no core dumps, for the same reason
    program = command(sys.argv[1:], clean, glob.glob(f"{SPARK_HOME}/jars/*.jar"))
    os.execve(TINI, ["tini", "--", *program], clean)


if __name__ == "__main__":
    main()
