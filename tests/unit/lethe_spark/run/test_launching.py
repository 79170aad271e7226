"""What a JVM is started with."""

import ast
import os
import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest
from lethe_spark.run.launching import ARCHIVE, class_path, jar_folders, launch_confs


@pytest.fixture
def image(tmp_path: Path) -> dict[str, str]:
    """The environment of a driver in the image, whose jars lie in one folder."""
    (tmp_path / "jars").mkdir()
    for name in ("spark-core.jar", "iceberg-spark-runtime-4.jar", "a.jar", "README"):
        (tmp_path / "jars" / name).touch()
    return {"SPARK_HOME": str(tmp_path)}


def test_a_session_starts_without_the_catalogs_secrets_and_in_writable_places() -> None:
    confs = launch_confs(
        {"spark.master": "k8s://https://kubernetes.default", "spark.driver.extraJavaOptions": "-Dx=y"},
        {"SPARK_LOCAL_DIRS": "/scratch", "LETHE_DRIVER_MEMORY": "900m", "SPARK_HOME": "/opt/spark"},
    )

    assert not [k for k in confs if k.startswith("spark.sql.catalog.")]
    assert (
        confs["spark.driver.memory"],
        confs["spark.sql.session.timeZone"],
        confs["spark.ui.enabled"],
    ) == ("900m", "UTC", "false")
    assert "-Djava.io.tmpdir=/scratch" in confs["spark.driver.extraJavaOptions"]
    assert confs["spark.driver.extraJavaOptions"].endswith("-Dx=y")
    assert "spark.driver.host" not in confs


def test_the_memory_of_a_run_does_not_get_onto_the_disk() -> None:
    """It holds values of rows, also erased ones. Python and all that it starts may write no core dump, and Java no heap."""
    shown = "import resource; print(resource.getrlimit(resource.RLIMIT_CORE))"
    script = (
        "import subprocess, sys; from lethe_spark.run.redact import forbid_core_dumps; forbid_core_dumps(); "
        f"sys.exit(subprocess.call([sys.executable, '-c', {shown!r}]))"
    )

    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    options = launch_confs({}, {"SPARK_HOME": "/opt/spark"})["spark.driver.extraJavaOptions"].split()

    assert done.stdout.strip() == "(0, 0)"
    assert {"-XX:-CreateCoredumpOnCrash", "-XX:-HeapDumpOnOutOfMemoryError"} <= set(options)


@pytest.mark.parametrize("module", ["apps.app", "apps.warm_session", "committer.__main__", "warm_driver.__main__"])
def test_every_program_of_a_run_forbids_core_dumps_first(module: str) -> None:
    path = files("lethe_spark").joinpath(f"{module.replace('.', '/')}.py")
    (main,) = (n for n in ast.parse(path.read_text()).body if isinstance(n, ast.FunctionDef) and n.name == "main")
    first = next(n for n in main.body if not (isinstance(n, ast.Expr) and isinstance(n.value, ast.Constant)))

    assert ast.unparse(first) == "forbid_core_dumps()"


def test_the_jars_are_named_one_by_one_in_an_order_of_their_own(image: dict[str, str]) -> None:
    """`jars/*` would be in the order in which a node's file system lists them."""
    named = launch_confs({}, image)["spark.driver.extraClassPath"].split(os.pathsep)

    assert [Path(jar).name for jar in named] == ["a.jar", "iceberg-spark-runtime-4.jar", "spark-core.jar"]


def test_outside_the_image_lethes_own_jars_come_before_sparks(image: dict[str, str], tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    (own / "z.jar").touch()

    folders = jar_folders({**image, "LETHE_JARS": str(own)})

    assert folders == [str(own), f"{image['SPARK_HOME']}/jars"]
    assert Path(class_path(folders)[0]).name == "z.jar"


def test_an_archive_of_classes_is_used_where_there_is_one(image: dict[str, str]) -> None:
    without = launch_confs({}, image)["spark.driver.extraJavaOptions"]
    archive = Path(image["SPARK_HOME"], "jars", ARCHIVE)
    archive.touch()

    assert "Archive" not in without
    assert f"-XX:SharedArchiveFile={archive} " in launch_confs({}, image)["spark.driver.extraJavaOptions"]
