"""The health checks for Argo CD, run on each resource in each of its stages."""

from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from lupa.lua51 import LuaRuntime

from tests.support.stages import Stage, stages

CHECKS = Path(__file__).parents[3] / "examples/argocd/resource_customizations/lethe.dev"
STAGES = stages()
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


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_argo_cd_shows_each_stage_as_whoever_deploys_it_takes_it(stage: Stage) -> None:
    status, message = check(stage.kind, stage.body)

    assert status == stage.argo
    ready = next((c for c in stage.status.get("conditions", ()) if c["type"] == "Ready"), None)
    assert message == (ready["message"] if ready else "The operator has not looked at it yet.")


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_an_edit_that_nobody_has_looked_at_is_progressing(stage: Stage) -> None:
    assert check(stage.kind, {"metadata": {"generation": 2}, "status": stage.status})[0] == "Progressing"
    assert check(stage.kind, {"metadata": {"generation": 1}})[0] == "Progressing"


def test_each_kind_has_a_check_where_argo_cd_looks_for_it() -> None:
    assert {p.parent.name for p in CHECKS.rglob("health.lua")} == {"Dataset", "Restatement", "VacuumPolicy"}
