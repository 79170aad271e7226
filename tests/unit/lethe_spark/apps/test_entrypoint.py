"""What the image's entry point starts, and with which variables."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from lethe_spark.apps import entrypoint
from lethe_spark.apps.entrypoint import OWN, command, environment

from tests.unit.lethe_operator.decide.guards.test_pod_template import DANGEROUS

EXECUTOR = {
    "SPARK_EXECUTOR_MEMORY": "900m",
    "SPARK_DRIVER_URL": "spark://CoarseGrainedScheduler@10.0.0.1:7078",
    "SPARK_EXECUTOR_ID": "3",
    "SPARK_EXECUTOR_CORES": "1",
    "SPARK_APPLICATION_ID": "spark-1",
    "SPARK_EXECUTOR_POD_IP": "10.0.0.2",
    "SPARK_RESOURCE_PROFILE_ID": "0",
    "SPARK_EXECUTOR_POD_NAME": "flights-exec-3",
    "SPARK_JAVA_OPT_10": "-Dlast=1",
    "SPARK_JAVA_OPT_2": "-Dfirst=a b",
}
CODE_RUNNERS = [n for family in ("shell", "loader", "JVM", "Python", "Hadoop") for n in DANGEROUS[family]]


@pytest.mark.parametrize("name", [n for n in CODE_RUNNERS if n not in ("TMPDIR", *OWN)])
def test_a_variable_by_which_other_code_is_run_is_dropped(name: str) -> None:
    assert environment({name: "x"}) == OWN


@pytest.mark.parametrize(
    "name", ["SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "SPARK_ENV_LOADED", "SPARK_DIST_CLASSPATH", "SPARK_X"]
)
def test_of_spark_s_variables_only_those_of_a_run_are_kept(name: str) -> None:
    assert environment({name: "x", **EXECUTOR}) == {**EXECUTOR, **OWN}


def test_the_image_s_own_paths_cannot_be_moved() -> None:
    assert environment(dict.fromkeys(OWN, "/mnt/mine")) == OWN


def test_what_runs_and_administrators_need_is_kept() -> None:
    needed = {
        "POD_NAME": "p",
        "LETHE_RUN_FILE": "/etc/lethe/run/run.json",
        "PYICEBERG_HOME": "/etc/lethe/catalogs",
        "SPARK_LOCAL_DIRS": "/scratch",
        "KUBERNETES_SERVICE_HOST": "10.96.0.1",
        "AWS_WEB_IDENTITY_TOKEN_FILE": "/var/run/secrets/eks.amazonaws.com/serviceaccount/token",
        "HTTPS_PROXY": "http://proxy:3128",
        "APP_MODE": "x",
    }

    assert environment(needed) == {**needed, **OWN}


def test_each_role_has_its_program() -> None:
    assert command(["driver", "--conf", "a=b"], {}, []) == [
        "/opt/lethe/bin/python", "-m", "lethe_spark.apps.app", "--conf", "a=b",
    ]  # fmt: skip
    assert command(["committer"], {}, []) == ["/opt/lethe/bin/python", "-m", "lethe_spark.committer"]
    assert command(["ls", "-l"], {}, []) == ["ls", "-l"]


def test_an_executor_gets_the_options_of_its_driver_in_their_order() -> None:
    wanted = command(["executor"], EXECUTOR, ["/j/b.jar", "/j/a.jar", "/j/B.jar"])

    assert wanted[:3] == ["/usr/bin/java", "-Dfirst=a b", "-Dlast=1"]
    assert wanted[wanted.index("-cp") + 1] == "/j/B.jar:/j/a.jar:/j/b.jar:/opt/lethe/conf"
    assert wanted[wanted.index("--driver-url") + 1] == EXECUTOR["SPARK_DRIVER_URL"]
    assert wanted[wanted.index("--podName") + 1] == "flights-exec-3"
    assert {"-Xms900m", "-Xmx900m", "-Dspark.master=k8s://"} < set(wanted)
    assert {"-XX:-CreateCoredumpOnCrash", "-XX:-HeapDumpOnOutOfMemoryError"} < set(wanted)


def test_an_executor_whose_driver_left_something_out_does_not_start() -> None:
    with pytest.raises(KeyError, match="SPARK_DRIVER_URL"):
        command(["executor"], {k: v for k, v in EXECUTOR.items() if k != "SPARK_DRIVER_URL"}, [])


def test_nothing_of_the_pod_s_is_executed_before_the_variables_are_dropped(tmp_path: Path) -> None:
    """As the image starts it, with code that waits in a shell's start file and in Python's."""
    (tmp_path / "tini").write_text("#!/bin/sh\nenv\necho CORE=$(ulimit -c)\n")
    (tmp_path / "tini").chmod(0o755)
    for name in ("sitecustomize", "usercustomize", "glob"):
        (tmp_path / f"{name}.py").write_text("print('MINE')")
    (tmp_path / "rc").write_text("echo MINE")
    source = Path(entrypoint.__file__).read_text().replace("/usr/bin/tini", str(tmp_path / "tini"))
    (tmp_path / "entry.py").write_text(source)
    mine = {
        "BASH_ENV": str(tmp_path / "rc"),
        "ENV": str(tmp_path / "rc"),
        "PYTHONPATH": str(tmp_path),
        "PYTHONSTARTUP": "rc",
    }

    done = subprocess.run(
        [sys.executable, "-I", str(tmp_path / "entry.py"), "driver"],
        env={**os.environ, **mine, "APP_MODE": "x"},
        capture_output=True,
        text=True,
        check=True,
    )

    assert "MINE" not in done.stdout + done.stderr
    seen = dict(line.partition("=")[::2] for line in done.stdout.splitlines())
    assert seen["PYTHONPATH"] == OWN["PYTHONPATH"]
    assert not {"BASH_ENV", "ENV", "PYTHONSTARTUP"} & seen.keys()
    assert (seen["APP_MODE"], seen["CORE"]) == ("x", "0")
