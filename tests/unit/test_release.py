"""What a release is made of: one version, and its section of the changelog."""

import importlib.util
import io
import json
import subprocess
import sys
import tarfile
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / f"dev/{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


release = script("release")


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
