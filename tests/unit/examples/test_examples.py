"""Examples for other systems: health checks run on each resource in each stage, and an action calls commands that exist."""

import re
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from lethe.cli.main import cli
from lupa.lua51 import LuaRuntime

from tests.support.stages import Stage, stages

CHECKS = Path(__file__).parents[3] / "examples/argocd/resource_customizations/lethe.dev"
STAGES = stages()
every_stage = pytest.mark.parametrize("stage", STAGES, ids=str)
# Argo CD has Lua 5.1 with the libraries base, package, table and a part of os.
NOT_IN_ARGO_CD = ("coroutine", "debug", "io", "math", "os", "python", "string")


@cache
def lua() -> LuaRuntime:
    runtime = LuaRuntime(register_eval=False, register_builtins=False)
    for library in NOT_IN_ARGO_CD:
        runtime.globals()[library] = None
    return runtime


def check(kind: str, resource: Mapping[str, Any]) -> tuple[str, str]:
    """Run the health check of a kind on a resource. Returns: status and message."""
    runtime = lua()
    runtime.globals()["obj"] = runtime.table_from(dict(resource), recursive=True)
    health = runtime.execute((CHECKS / kind / "health.lua").read_text())
    return health["status"], health["message"]


@every_stage
def test_argo_cd_shows_each_stage_as_whoever_deploys_it_takes_it(stage: Stage) -> None:
    """An edit that nobody has looked at is progressing."""
    status, message = check(stage.kind, stage.body)

    assert status == stage.argo
    ready = next((c for c in stage.status.get("conditions", ()) if c["type"] == "Ready"), None)
    assert message == (ready["message"] if ready else "The operator has not looked at it yet.")
    assert check(stage.kind, {"metadata": {"generation": 2}, "status": stage.status})[0] == "Progressing"
    assert check(stage.kind, {"metadata": {"generation": 1}})[0] == "Progressing"


def test_each_kind_has_a_check_where_argo_cd_looks_for_it() -> None:
    assert {p.parent.name for p in CHECKS.rglob("health.lua")} == {"Dataset", "Restatement", "VacuumPolicy"}


WORKFLOW = Path(__file__).parents[3] / "examples/github/plan.yaml"


def steps() -> list[dict[str, Any]]:
    (job,) = yaml.safe_load(WORKFLOW.read_text())["jobs"].values()
    found: list[dict[str, Any]] = job["steps"]
    return found


def test_the_command_parses() -> None:
    """The options exist, and the job keeps the exit code."""
    (script,) = [s["run"] for s in steps() if "lethe plan" in s.get("run", "")]
    (line,) = re.findall(r"lethe (plan.*?) >", script)
    name, *arguments = shlex.split(line)
    parent = click.Context(cli, **cli.context_settings)
    command = cli.get_command(parent, name)
    assert command is not None

    folder = [a if a != "lake" else str(WORKFLOW.parent) for a in arguments]
    with command.make_context(name, folder, parent=parent) as context:
        assert context.params["files"] == (WORKFLOW.parent,)
    assert script.rstrip().endswith('exit "$code"')


def test_secrets_are_in_the_environment_of_one_step_only() -> None:
    """Never in a command line, which the log shows."""
    text = WORKFLOW.read_text()
    using = [s for s in steps() if "secrets." in str(s)]

    assert [s["name"] for s in using] == ["Write the credentials to files"]
    assert "secrets." not in using[0]["run"]
    assert yaml.safe_load(text)["permissions"] == {"contents": "read"}


ARGO_WORKFLOWS = Path(__file__).parents[3] / "examples/argo/orders.yaml"


def selected(condition: str, resource: Mapping[str, Any]) -> list[bool]:
    """Whether each requirement of a condition of Argo Workflows holds: a selector of labels, whose keys are paths of gjson."""
    requirements = re.findall(r"([\w.]+) (?:== (\w+)|in \(([\w,]+)\))(?:, |$)", condition)
    assert ", ".join(f"{key} == {one}" if one else f"{key} in ({many})" for key, one, many in requirements) == condition

    def value(path: str) -> Any:
        found: Any = resource
        for step in path.split("."):
            if isinstance(found, list | tuple):
                found = found[int(step)] if int(step) < len(found) else None
            else:
                found = (found or {}).get(step)
        return found

    return [value(key) in (many.split(",") if many else [one]) for key, one, many in requirements]


@pytest.mark.parametrize("stage", [s for s in STAGES if s.kind == "Restatement"], ids=str)
def test_argo_workflows_ends_the_step_when_the_restatement_ends(stage: Stage) -> None:
    (template,) = [t for t in yaml.safe_load(ARGO_WORKFLOWS.read_text())["spec"]["templates"] if "resource" in t]
    resource = template["resource"]

    failed = any(selected(resource["failureCondition"], stage.body))
    succeeded = not failed and all(selected(resource["successCondition"], stage.body))

    # A cancelled Restatement is applied, as kstatus sees it. A workflow waits for the rows, so its step fails.
    cancelled = stage.status.get("phase") == "Cancelled"
    assert (succeeded, failed) == (stage.kstatus == "Current" and not cancelled, stage.kstatus == "Failed" or cancelled)
