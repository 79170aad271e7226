"""What each command of the tests runs, and what it needs for that."""

import re
from pathlib import Path
from types import ModuleType

import pytest

from tests.support.scripts import load_script

ROOT = Path(__file__).parents[3]
NO_TESTS = {"model", "support"}  # what other folders use


@pytest.fixture
def tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """dev/test.py, which is a script."""
    monkeypatch.setenv("LETHE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("LETHE_STATE", str(tmp_path / "state"))
    return load_script("dev/test.py")


def test_each_folder_of_tests_is_run_by_a_tier_that_knows_what_it_needs(tiers: ModuleType) -> None:
    folders = {f"tests/{p.name}" for p in (ROOT / "tests").iterdir() if p.is_dir() and p.name[0] not in "._"}
    run = {folder for run in tiers.RUNS for folder in run} | {tiers.ON_CLUSTER}
    of_all = {folder for step in tiers.TIERS["all"].steps for run in step for folder in run} | {tiers.ON_CLUSTER}

    assert folders - {f"tests/{name}" for name in NO_TESTS} == run == of_all
    assert set(tiers.NEEDS) == run - {tiers.ON_CLUSTER}
    assert {p for table in (tiers.NEEDS, tiers.LONG_NEEDS) for parts in table.values() for p in parts} <= set(
        tiers.PARTS
    )
    assert {other for part in tiers.PARTS.values() for other in part.after} <= set(tiers.PARTS)


def test_the_fast_tests_need_python_only(tiers: ModuleType) -> None:
    plan = tiers.TIERS["fast"]

    assert [tiers.needs_of(run, plan.long) for step in plan.steps for run in step] == [["python"]]
    assert not plan.cluster


def test_what_only_long_tests_need_is_not_built_before(tiers: ModuleType) -> None:
    needed = needs(tiers, "test")

    assert not needed & {"compiler", "engines", "launchers", "kubernetes"}
    assert {"compiler", "engines", "launchers", "kubernetes"} <= needs(tiers, "all")


def needs(tiers: ModuleType, tier: str) -> set[str]:
    plan = tiers.TIERS[tier]
    return {part for step in plan.steps for run in step for part in tiers.needs_of(run, plan.long)}


def test_ci_runs_what_the_readme_names_and_all_linters(tiers: ModuleType) -> None:
    ci, test, cluster = (tiers.TIERS[name] for name in ("ci", "test", "cluster"))

    assert [run for step in ci.steps for run in step] == [
        run for plan in (test, cluster) for step in plan.steps for run in step
    ]
    assert (ci.cluster, ci.lint, ci.long) == (cluster.cluster, "all", False)


@pytest.mark.parametrize(
    ("folders", "steps", "cluster"),
    [
        (("tests/spark/vacuum",), ((("tests/spark/vacuum",),),), ()),
        (("tests/local", "tests/unit/dev"), ((("tests/unit/dev",),), (("tests/local",),)), ()),
        (("tests/cluster/test_loop.py",), (), ("tests/cluster/test_loop.py",)),
        (("tests/sparkling",), (), ()),
    ],
)
def test_folders_are_run_one_after_the_other(
    folders: tuple[str, ...],
    steps: tuple[tuple[tuple[str, ...], ...], ...],
    cluster: tuple[str, ...],
    tiers: ModuleType,
) -> None:
    plan = tiers.plan_of("test", folders)

    assert (plan.steps, plan.cluster, plan.lint) == (steps, cluster, "")


def test_the_last_lines_are_those_of_pytest(tiers: ModuleType, tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("..F\n== FAILURES ==\n== short test summary info ==\nFAILED a::b\n== 1 failed, 2 passed in 1s ==\n")
    passed = tmp_path / "passed"
    passed.write_text("...\n== 3 passed in 1s ==\n")

    assert tiers.last_lines(log).splitlines()[1:] == ["FAILED a::b", "== 1 failed, 2 passed in 1s =="]
    assert tiers.last_lines(passed) == "== 3 passed in 1s =="


def test_the_cache_of_the_workflow_depends_on_files_that_are_there() -> None:
    text = (ROOT / ".github/workflows/ci.yaml").read_text()
    named = text.split("hashFiles(")[1].split(")")[0]

    for pattern in named.replace("'", "").split(", "):
        assert list(ROOT.glob(pattern)), f"no file fits {pattern}"


def test_no_unit_test_measures_processor_time_or_memory() -> None:
    measuring = re.compile(r"\b(process_time|perf_counter|get_traced_memory)\(")
    found = [p for p in (ROOT / "tests/unit").rglob("*.py") if measuring.search(p.read_text())]

    assert found == [], "tests/long is for these"
