"""Renders the chart with Helm and finds objects in the result."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm/lethe"
CACHE = Path(os.environ.get("LETHE_CACHE") or Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "lethe")
HELM = shutil.which("helm", path=f"{CACHE / 'bin'}:{os.environ.get('PATH', '')}")
CATALOGS = {
    "catalogs": {"main": {"type": "sql", "uri": "postgresql+psycopg2://u:p@db/lake", "warehouse": "s3://lake/w"}}
}


def helm(*arguments: str, values: dict[str, Any] | None = None) -> subprocess.CompletedProcess[str]:
    assert HELM is not None, "helm is not there: run dev/tools.sh helm"
    return subprocess.run(
        [HELM, *arguments, "--values", "-"], input=json.dumps(values or {}), capture_output=True, text=True, timeout=60,
        env={**os.environ, "GOGC": "400"},  # a process that ends at once need not collect garbage
    )  # fmt: skip


def render(
    values: dict[str, Any] | None = None, *more: str, release: str = "lethe", definitions: bool = False
) -> list[dict[str, Any]]:
    """The objects of the chart, which tests only read: many render the same values.

    Args:
        definitions: With those of the resources, which take as long as all other objects together.
    """
    left_out = {} if definitions else {"crds": {"install": False}}
    return list(_rendered(json.dumps({**left_out, **(values or {})}, sort_keys=True), release, *more))


@cache
def _rendered(values: str, release: str, *more: str) -> tuple[dict[str, Any], ...]:
    done = helm("template", release, str(CHART), "--namespace", f"{release}-system", *more, values=json.loads(values))
    assert done.returncode == 0, done.stderr
    return tuple(document for document in yaml.load_all(done.stdout, yaml.CSafeLoader) if document)


def refused(values: dict[str, Any], *more: str) -> str:
    done = helm("template", "lethe", str(CHART), "--namespace", "lethe-system", *more, values=values)
    assert done.returncode != 0
    return done.stderr


def of_kind(documents: list[dict[str, Any]], kind: str, component: str = "operator") -> list[dict[str, Any]]:
    """Those that say they belong to a component, or to none."""
    key = "app.kubernetes.io/component"
    ours = [d for d in documents if d["metadata"].get("labels", {}).get(key, component) == component]
    return [document for document in ours if document["kind"] == kind]


def secrets_called(name: str, values: dict[str, Any]) -> list[dict[str, Any]]:
    return [s for s in of_kind(render(values), "Secret") if s["metadata"]["name"] == name]


def container(documents: list[dict[str, Any]], component: str = "operator") -> dict[str, Any]:
    (deployment,) = of_kind(documents, "Deployment", component)
    (only,) = deployment["spec"]["template"]["spec"]["containers"]
    assert isinstance(only, dict)
    return only


def environment(documents: list[dict[str, Any]]) -> dict[str, str]:
    """The variables of the operator, without those that Kubernetes fills in."""
    return {v["name"]: v["value"] for v in container(documents)["env"] if "value" in v}


def watched(documents: list[dict[str, Any]], kind: str) -> list[dict[str, Any]]:
    """The operator's objects in watched namespaces."""
    return [d for d in of_kind(documents, kind) if d["metadata"]["namespace"] != "lethe-system"]
