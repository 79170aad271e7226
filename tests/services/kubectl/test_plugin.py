"""The archive of `kubectl lethe`, and the files with which krew and Homebrew install it."""

import hashlib
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

PLUGIN = Path(__file__).parents[3] / "dev/plugin"
TEXT = {"type": "string", "minLength": 1}
# What krew accepts: https://krew.sigs.k8s.io/docs/developer-guide/plugin-manifest/. It refuses unknown fields.
SCHEMA: dict[str, Any] = {
    "type": "object",
    "additionalProperties": False,
    "required": ["apiVersion", "kind", "metadata", "spec"],
    "properties": {
        "apiVersion": {"const": "krew.googlecontainertools.github.com/v1alpha2"},
        "kind": {"const": "Plugin"},
        "metadata": {
            "type": "object", "additionalProperties": False, "required": ["name"],
            "properties": {"name": {"pattern": r"^[\w-]+$"}},
        },
        "spec": {
            "type": "object",
            "additionalProperties": False,
            "required": ["version", "shortDescription", "platforms"],
            "properties": {
                "version": {"type": "string", "pattern": r"^v\d+\.\d+\.\d+([-+].+)?$"},
                "shortDescription": {"type": "string", "pattern": r"^[^\r\n]+[^.\r\n]$", "maxLength": 50},
                "description": TEXT,
                "caveats": TEXT,
                "homepage": {"type": "string", "pattern": "^https://"},
                "platforms": {
                    "type": "array",
                    "minItems": 1,
                    "items": {
                        "type": "object",
                        "additionalProperties": False,
                        "required": ["uri", "sha256", "bin", "selector"],
                        "properties": {
                            "uri": {"type": "string", "pattern": r"^\w+://.+\.(tar\.gz|zip)$"},
                            "sha256": {"type": "string", "pattern": "^[a-f0-9]{64}$"},
                            "bin": TEXT,
                            "selector": {
                                "type": "object",
                                "additionalProperties": False,
                                "minProperties": 1,
                                "properties": {
                                    "matchLabels": {
                                        "type": "object", "minProperties": 1, "propertyNames": {"enum": ["os", "arch"]},
                                    },
                                    "matchExpressions": {
                                        "type": "array",
                                        "minItems": 1,
                                        "items": {
                                            "type": "object",
                                            "required": ["key", "operator", "values"],
                                            "properties": {
                                                "key": {"enum": ["os", "arch"]},
                                                "operator": {"enum": ["In", "NotIn"]},
                                                "values": {"type": "array", "minItems": 1, "items": TEXT},
                                            },
                                        },
                                    },
                                },
                            },
                            "files": {
                                "type": "array",
                                "minItems": 1,
                                "items": {
                                    "type": "object", "required": ["from", "to"], "properties": {"from": TEXT, "to": TEXT},
                                },
                            },
                        },
                    },
                },
            },
        },
    },
}  # fmt: skip


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    """Not a real one: packing does not look inside."""
    wheel = tmp_path / "lethe_lake-1.2.3-py3-none-any.whl"
    wheel.write_bytes(b"wheel")
    return wheel


def packed(wheel: Path, out: Path, url: str = "") -> dict[str, Any]:
    out.mkdir()
    environ = {**os.environ, **({"LETHE_RELEASE_URL": url} if url else {})}
    subprocess.run([PLUGIN / "pack.sh", wheel, out], env=environ, check=True, capture_output=True, timeout=60)
    found: dict[str, Any] = yaml.safe_load((out / "lethe.yaml").read_text())
    return found


def test_the_manifest_is_one_that_krew_accepts(wheel: Path, tmp_path: Path) -> None:
    manifest = packed(wheel, tmp_path / "out", "https://releases.example/v1.2.3")

    jsonschema.validate(manifest, SCHEMA)
    (platform,) = manifest["spec"]["platforms"]
    archive = tmp_path / "out/kubectl-lethe-1.2.3.tar.gz"
    assert manifest["spec"]["version"] == "v1.2.3"
    assert platform["uri"] == f"https://releases.example/v1.2.3/{archive.name}"
    assert platform["sha256"] == hashlib.sha256(archive.read_bytes()).hexdigest()


def test_the_formula_downloads_the_same_archive(wheel: Path, tmp_path: Path) -> None:
    (platform,) = packed(wheel, tmp_path / "out", "https://releases.example/v1.2.3")["spec"]["platforms"]

    formula = (tmp_path / "out/kubectl-lethe.rb").read_text()
    fields = dict(re.findall(r'^  (url|version|sha256) "(.*)"$', formula, re.MULTILINE))
    assert fields == {"url": platform["uri"], "version": "1.2.3", "sha256": platform["sha256"]}
    assert "{{" not in formula


def test_the_template_itself_is_not_accepted() -> None:
    """So a manifest that was not filled in cannot be published."""
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(yaml.safe_load((PLUGIN / "lethe.yaml").read_text()), SCHEMA)


def test_the_archive_holds_the_program_and_is_the_same_each_time(wheel: Path, tmp_path: Path) -> None:
    (platform,) = packed(wheel, tmp_path / "one")["spec"]["platforms"]
    again = packed(wheel, tmp_path / "two")["spec"]["platforms"][0]

    with tarfile.open(tmp_path / "one/kubectl-lethe-1.2.3.tar.gz") as archive:
        names = {m.name.removeprefix("./"): m for m in archive.getmembers() if m.isfile()}
    assert set(names) == {"kubectl-lethe", "LICENSE", wheel.name}
    assert names[platform["bin"]].mode & 0o111
    assert again["sha256"] == platform["sha256"]


FAKE_PYTHON = """#!/bin/sh
# Instead of pip, which would download: a package that prints what it was called with.
if [ "$1 $2" = "-m pip" ]; then
  shift 2
  echo "$@" >> "$PIP_LOG"
  [ -z "$PIP_FAILS" ] || { echo "no route to the index" >&2; exit 1; }
  while [ "$1" != --target ]; do shift; done
  mkdir -p "$2/lethe/cli"
  echo "import sys" > "$2/lethe/cli/main.py"
  echo "def main(): print(sys.argv)" >> "$2/lethe/cli/main.py"
  exit 0
fi
exec {python} "$@"
"""


def test_the_program_installs_its_packages_once_and_passes_its_arguments_on(wheel: Path, tmp_path: Path) -> None:
    plugin, python = tmp_path / "plugin", tmp_path / "python"
    plugin.mkdir()
    wheel.rename(plugin / wheel.name)
    (plugin / "kubectl-lethe").write_bytes((PLUGIN / "kubectl-lethe").read_bytes())
    (tmp_path / "kubectl-lethe").symlink_to(plugin / "kubectl-lethe")
    python.write_text(FAKE_PYTHON.replace("{python}", sys.executable))
    python.chmod(0o755)
    environ = {
        "PATH": os.environ["PATH"], "HOME": str(tmp_path), "LETHE_PYTHON": str(python), "PIP_LOG": str(tmp_path / "pip.log"),
    }  # fmt: skip

    def called(*arguments: str) -> str:
        command = ["bash", str(tmp_path / "kubectl-lethe"), *arguments]
        return subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=60).stdout

    assert called("status", "-n", "a b") == "['kubectl-lethe', 'status', '-n', 'a b']\n"
    assert called() == "['kubectl-lethe']\n"
    (installed,) = (tmp_path / "pip.log").read_text().splitlines()
    assert f"lethe-lake[kubectl] @ file://{plugin / wheel.name}" in installed
    packages = tmp_path / ".local/share/lethe"
    assert [p.name for p in packages.iterdir()] == [f"{wheel.stem}-py{sys.version_info[0]}.{sys.version_info[1]}"]

    environ |= {"XDG_DATA_HOME": str(tmp_path / "other"), "PIP_FAILS": "yes"}
    with pytest.raises(subprocess.CalledProcessError) as failed:
        called("status")
    assert (failed.value.returncode, "no route to the index" in failed.value.stderr) == (10, True)
    assert list((tmp_path / "other/lethe").iterdir()) == []


def test_without_a_python_the_program_says_what_it_needs(wheel: Path, tmp_path: Path) -> None:
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "LETHE_PYTHON": "no-such-python"}

    refused = subprocess.run(
        ["bash", PLUGIN / "kubectl-lethe"], env=environ, capture_output=True, text=True, check=False, timeout=60
    )

    assert wheel.exists()
    assert (refused.returncode, refused.stdout) == (10, "")
    assert "needs Python 3.11 or newer, and no-such-python is not" in refused.stderr
