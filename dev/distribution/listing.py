"""What the sites that list Lethe show: facts from the chart, the resource definitions, the examples and the changelog."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "spark_apps"), str(ROOT)]

from lethe.contract.definitions import RESOURCES, Resource  # noqa: E402

from dev import release  # noqa: E402

CHART = ROOT / "helm/lethe"
REPOSITORY = "https://github.com/lethe-lake/lethe"
SOURCES = f"{REPOSITORY}/blob/{{ref}}/"
# The resource that a site shows as the example of a kind.
EXAMPLES = {
    "Dataset": "examples/flights/dataset.yaml",
    "Restatement": "examples/flights/restatement-revert.yaml",
    "VacuumPolicy": "examples/flights/vacuumpolicy.yaml",
}
# Artifact Hub's kinds of changes by headings of the changelog.
CHANGES = {
    "Added": "added",
    "Changed": "changed",
    "Deprecated": "deprecated",
    "Removed": "removed",
    "Fixed": "fixed",
    "Security": "security",
}


def ref() -> str:
    """The tag of this version."""
    return f"v{release.version()}"


def chart() -> dict[str, Any]:
    """The chart's metadata."""
    found: dict[str, Any] = yaml.safe_load((CHART / "Chart.yaml").read_text())
    return found


def crd(resource: Resource) -> dict[str, Any]:
    """The definition of a kind of resource, as in crds/."""
    found: dict[str, Any] = yaml.safe_load((ROOT / f"crds/{resource.kind.lower()}.yaml").read_text())
    return found


def definitions() -> list[dict[str, str]]:
    """What sites say of each kind of resource."""
    return [
        {
            "kind": resource.kind,
            "version": version["name"],
            "name": definition["metadata"]["name"],
            "displayName": re.sub(r"(?<=[a-z])(?=[A-Z])", " ", resource.kind),
            "description": resource.description,
        }
        for resource in RESOURCES
        for definition in [crd(resource)]
        for version in definition["spec"]["versions"]
    ]


def examples() -> list[dict[str, Any]]:
    """A resource of each kind."""
    return [yaml.safe_load((ROOT / EXAMPLES[resource.kind]).read_text()) for resource in RESOURCES]


def images() -> dict[str, str]:
    """The references of the images that the chart installs by default, by name."""
    values = yaml.safe_load((CHART / "values.yaml").read_text())["image"]
    return {f"lethe-{name}": f"{values[name]}:{release.version()}" for name in ("operator", "spark")}


def changes(notes: str) -> list[dict[str, str]]:
    """The entries of a section of the changelog, in the form of Artifact Hub.

    Entries above the first heading are of the kind "added". The text is plain: links keep their words only.
    """
    found = []
    kind = "added"
    for part in re.split(r"^(?=- |### )", notes, flags=re.MULTILINE):
        if part.startswith("### "):
            kind = CHANGES[part.removeprefix("### ").split("\n")[0].strip()]
        elif part.startswith("- "):
            text = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", " ".join(part.removeprefix("- ").split()))
            found.append({"kind": kind, "description": text.replace("`", "").replace("*", "")})
    return found


def git(*arguments: str) -> str:
    """What a command of git prints about this checkout, with times in UTC."""
    command, environment = ["git", *arguments], {**os.environ, "TZ": "UTC"}
    return subprocess.run(command, cwd=ROOT, env=environment, check=True, capture_output=True, text=True).stdout.strip()


def commit_time() -> str:
    """When the last commit was made, in UTC."""
    return git("log", "-1", "--date=format-local:%Y-%m-%dT%H:%M:%SZ", "--format=%cd")


def render(values: Path, namespace: str) -> list[dict[str, Any]]:
    """The objects of the chart."""
    command = ["helm", "template", "lethe", str(CHART), "--namespace", namespace, "--values", str(values)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return [document for document in yaml.safe_load_all(done.stdout) if document]


def as_yaml(value: Any) -> str:
    """A value as text of YAML, without aliases, in the order of its fields."""
    return yaml.dump(value, Dumper=_Dumper, sort_keys=False, width=128)


def as_json(value: Any) -> str:
    """A value as text of JSON."""
    return json.dumps(value, indent=2) + "\n"


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, _: Any) -> bool:
        return True
