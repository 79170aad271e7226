"""Each rule of who may import whom is seen to break when somebody breaks it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

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
