"""What is imported by whom and when, which jars are where, and which version all of it is."""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml
from lethe.jars.download import JarScope, listed
from lethe.version import VERSION, version

ROOT = Path(__file__).parents[3]


def lint(tree: Path) -> subprocess.CompletedProcess[str]:
    """import-linter on the packages below `tree`, by the contracts of the project."""
    path = os.pathsep.join([str(tree / "operator"), str(tree / "spark_apps")])
    return subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--config", ROOT / "pyproject.toml", "--no-cache"],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tree / "spark_apps",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


BREACHES = {
    "the operator and the Spark code meet only in lethe": ("lethe_spark/jobs/vacuum/job.py", "lethe_operator.reasons"),
    "lethe: subjects are acyclic, and I/O is above what decides": ("lethe/ledger/tombstone.py", "lethe.files.bounds"),
    "pure means pure": ("lethe/vacuum/plan.py", "time"),
    "lethe runs without Spark and without Kubernetes": ("lethe/read/scan.py", "pyspark"),
    "py4j is spoken in one folder": ("lethe_spark/jobs/vacuum/job.py", "py4j"),
    "lethe_spark: subjects are acyclic": ("lethe_spark/jvm/table.py", "lethe_spark.commit.table_state"),
}


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    """What import-linter says of a tree with all breaches. `make lint` says that the tree itself has none."""
    tree = tmp_path_factory.mktemp("tree")
    for package in ("operator", "spark_apps"):
        shutil.copytree(ROOT / package, tree / package, ignore=shutil.ignore_patterns("__pycache__"))
    for path, imported in BREACHES.values():
        with (tree / "spark_apps" / path).open("a") as module:
            module.write(f"\nimport {imported}\n")
    done = lint(tree)
    assert done.returncode == 1, done.stderr
    return done.stdout


@pytest.mark.parametrize("contract", BREACHES)
def test_a_breach_is_seen(contract: str, broken: str) -> None:
    """A contract that nothing can break is no contract."""
    assert f"{contract} BROKEN" in broken


def test_the_release_is_that_of_the_project_and_of_the_chart() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((ROOT / "helm/lethe/Chart.yaml").read_text())

    assert project["version"] == chart["version"] == chart["appVersion"] == VERSION


@pytest.mark.parametrize("package", ["lethe", "lethe_spark"])
def test_the_wheel_says_that_its_packages_are_typed(package: str) -> None:
    """Without the marker, mypy and IDEs take everything for Any. setuptools ships no file but Python unless it is named."""
    tool = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]

    shipped = [f for pattern in tool["package-data"][package] for f in (ROOT / "spark_apps" / package).glob(pattern)]

    assert [f.name for f in shipped] == ["py.typed"]
    assert "spark_apps" in tool["packages"]["find"]["where"]


def test_the_version_changes_with_the_code() -> None:
    assert re.fullmatch(rf"{re.escape(VERSION)}\+[0-9a-f]{{8}}", version())
    assert version() == version()


LINES = """
image org.a:spark:1 aa
local org.b:sqlite:2 bb  # a remark
rest org.c:core:3:tests cc
sqs org.d:queue:4 dd
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "jars.txt"
    path.write_text(LINES)
    return path


@pytest.mark.parametrize(
    ("scope", "expected"),
    [
        (JarScope.IMAGE, [("./spark-1.jar", "aa")]),
        (JarScope.LOCAL, [("./spark-1.jar", "aa"), ("./sqlite-2.jar", "bb")]),
        (
            JarScope.TEST,
            [
                ("./spark-1.jar", "aa"),
                ("./sqlite-2.jar", "bb"),
                ("rest/core-3-tests.jar", "cc"),
                ("sqs/queue-4.jar", "dd"),
            ],
        ),
    ],
)
def test_the_image_and_local_runs_have_only_the_jars_that_they_need(
    path: Path, scope: JarScope, expected: list[tuple[str, str]]
) -> None:
    """Jars of servers contain classes that Spark's jars contain too, so they are not in its class path."""
    found = listed(scope, path)

    assert [(f"{j.folder}/{j.name}", j.sha256) for j in found] == expected
    assert found[0].path == "org/a/spark/1/spark-1.jar"


def test_help_imports_no_package_of_a_command() -> None:
    code = "import sys\nfrom lethe.cli.main import main\ntry: main(['--help'])\nfinally: print(*sys.modules, file=sys.stderr)"

    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False).stderr.split()

    assert "click" in loaded
    assert not {"pyiceberg", "pyarrow", "kubernetes", "rich", "numpy"} & set(loaded)
