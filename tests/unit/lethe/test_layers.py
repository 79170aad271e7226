"""The rules of who may import whom hold, and each is seen to break when somebody breaks it."""

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
        env={**os.environ, "PYTHONPATH": path, "PYTHONDONTWRITEBYTECODE": "1"},
        cwd=tree / "spark_apps",
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_the_tree_keeps_every_contract() -> None:
    done = lint(ROOT)

    assert done.returncode == 0, done.stdout


BREACHES = {
    "the operator and the Spark code meet only in lethe": ("lethe_spark/jobs/vacuum/job.py", "lethe_operator.reasons"),
    "lethe: subjects are acyclic, and I/O is above what decides": ("lethe/ledger/tombstone.py", "lethe.files.bounds"),
    "pure means pure": ("lethe/vacuum/plan.py", "time"),
    "lethe runs without Spark and without Kubernetes": ("lethe/read/scan.py", "pyspark"),
    "py4j is spoken in one folder": ("lethe_spark/jobs/vacuum/job.py", "py4j"),
    "lethe_spark: subjects are acyclic": ("lethe_spark/jvm/table.py", "lethe_spark.commit.table_state"),
}


@pytest.mark.parametrize(("contract", "breach"), BREACHES.items(), ids=BREACHES)
def test_a_breach_is_seen(contract: str, breach: tuple[str, str], tmp_path: Path) -> None:
    """A contract that nothing can break is no contract."""
    for package in ("operator", "spark_apps"):
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    path, imported = breach
    with (tmp_path / "spark_apps" / path).open("a") as module:
        module.write(f"\nimport {imported}\n")

    done = lint(tmp_path)

    assert done.returncode == 1
    assert f"{contract} BROKEN" in done.stdout
