"""What is fetched from elsewhere is pinned by its content: packages by hashes, base images by digests, actions by commits."""

import re
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from lethe_operator.runs.job import SPARK_VERSION
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = ROOT / "dev/requirements"
EXTRAS = {"dev": ("gateway", "operator", "spark", "test"), "operator": ("operator",), "spark": ("spark",)}
DOCKERFILES = [p.relative_to(ROOT).as_posix() for p in ROOT.glob("**/Dockerfile")]
WORKFLOWS = [
    p.relative_to(ROOT).as_posix() for d in (".github/workflows", "examples/github") for p in (ROOT / d).glob("*.y*ml")
]


def pins(name: str) -> dict[str, str]:
    """Version by package. Every package of a lock has at least one hash, or pip would refuse the whole file."""
    entries = re.split(r"\n(?=\S)", (LOCKS / f"{name}.txt").read_text())
    found = {}
    for entry in entries:
        if match := re.match(r"([A-Za-z0-9._-]+)==([^ ;\\]+)", entry):
            assert re.search(r"--hash=sha256:[0-9a-f]{64}", entry), f"{name}.txt: {match[1]} has no hash"
            found[canonicalize_name(match[1])] = match[2]
    return found


def wanted(extras: Iterable[str]) -> list[Requirement]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(r for e in extras for r in project["optional-dependencies"][e])]
    return [Requirement(text) for text in texts]


@pytest.mark.parametrize("name", EXTRAS)
def test_a_lock_satisfies_what_pyproject_asks_for(name: str) -> None:
    """Otherwise run dev/lock.sh."""
    locked = pins(name)

    for requirement in wanted(EXTRAS[name]):
        version = locked.get(canonicalize_name(requirement.name))
        assert version is not None, f"{name}.txt lacks {requirement.name}: run dev/lock.sh"
        assert requirement.specifier.contains(version), f"{name}.txt has {requirement.name} {version}: run dev/lock.sh"


@pytest.mark.parametrize("name", ["operator", "spark"])
def test_an_image_holds_the_versions_that_the_tests_run_with(name: str) -> None:
    assert pins(name).items() <= pins("dev").items()


def test_a_spark_application_names_the_version_of_spark_in_the_image() -> None:
    assert pins("spark")["pyspark"] == SPARK_VERSION


@pytest.mark.parametrize("path", DOCKERFILES)
def test_a_base_image_is_named_by_its_digest(path: str) -> None:
    lines = (ROOT / path).read_text().splitlines()
    arguments = dict(line.removeprefix("ARG ").split("=", 1) for line in lines if re.match(r"ARG \w+=", line))
    stages = {line.split()[3] for line in lines if re.match(r"FROM \S+ AS ", line)}

    bases = [line.split()[1] for line in lines if line.startswith("FROM ")]
    assert bases
    for base in bases:
        name = re.sub(r"\$\{(\w+)\}", lambda match: arguments[match[1]], base)
        assert name == "scratch" or name in stages or re.search(r"@sha256:[0-9a-f]{64}$", name), f"{path}: FROM {name}"


@pytest.mark.parametrize("path", WORKFLOWS)
def test_an_action_is_named_by_its_commit(path: str) -> None:
    jobs = yaml.safe_load((ROOT / path).read_text())["jobs"]

    used = [step["uses"] for job in jobs.values() for step in job["steps"] if "uses" in step]
    assert used
    for action in used:
        assert re.search(r"@[0-9a-f]{40}$", action), f"{path}: {action}"
