"""A process knows which version of Lethe it runs."""

import re
import tomllib
from pathlib import Path

import yaml
from lethe.version import VERSION, version

ROOT = Path(__file__).parents[3]


def test_the_release_is_that_of_the_project_and_of_the_chart() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    chart = yaml.safe_load((ROOT / "helm/lethe/Chart.yaml").read_text())

    assert project["version"] == chart["version"] == chart["appVersion"] == VERSION


def test_the_version_changes_with_the_code() -> None:
    assert re.fullmatch(rf"{re.escape(VERSION)}\+[0-9a-f]{{8}}", version())
    assert version() == version()
