"""The health checks for Argo CD, run on each resource in each of its stages."""

from pathlib import Path

import pytest

from tests.unit.examples.lua import check_of
from tests.unit.lethe_operator.stages import Stage, stages

CHECKS = Path(__file__).parents[3] / "examples/argocd/resource_customizations/lethe.dev"
STAGES = stages()


def check(stage: Stage) -> tuple[str, str]:
    return check_of((CHECKS / stage.kind / "health.lua").read_text())(stage.body)


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_argo_cd_shows_each_stage_as_whoever_deploys_it_takes_it(stage: Stage) -> None:
    status, message = check(stage)

    assert status == stage.argo
    ready = next((c for c in stage.status.get("conditions", ()) if c["type"] == "Ready"), None)
    assert message == (ready["message"] if ready else "The operator has not looked at it yet.")


@pytest.mark.parametrize("stage", STAGES, ids=str)
def test_an_edit_that_nobody_has_looked_at_is_progressing(stage: Stage) -> None:
    check = check_of((CHECKS / stage.kind / "health.lua").read_text())

    assert check({"metadata": {"generation": 2}, "status": stage.status})[0] == "Progressing"
    assert check({"metadata": {"generation": 1}})[0] == "Progressing"


def test_each_kind_has_a_check_where_argo_cd_looks_for_it() -> None:
    assert {p.parent.name for p in CHECKS.rglob("health.lua")} == {"Dataset", "Restatement", "VacuumPolicy"}


@pytest.mark.parametrize(
    "lua",
    [
        "if obj.a then",
        "if a == nil then",
        "x = f(1)",
        "return {}",
        "while true do",
        "for i = 1, 2 do",
        "repeat",
        "goto x",
    ],
)
def test_a_form_of_lua_that_is_not_read_here_fails_instead_of_being_guessed(lua: str) -> None:
    with pytest.raises(ValueError, match=r"line 1|have no end"):
        check_of(lua)
