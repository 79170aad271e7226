"""`lethe doctor --cluster` says what is wrong in a namespace."""

import json

import pytest

from tests.services.kubectl.conftest import LocalApi

SINCE = "2026-11-28T20:00:00Z"


def test_a_namespace_is_examined_as_a_whole(local: LocalApi) -> None:
    healthy = local.lethe("doctor", "--cluster")
    stalled = {
        "type": "Stalled",
        "status": "True",
        "reason": "TableNotFound",
        "message": "no table.",
        "lastTransitionTime": SINCE,
    }
    local.dataset("flights", status={"conditions": [stalled], "observedGeneration": 1})

    ill, text = local.lethe("doctor", "--cluster", "--json"), local.lethe("doctor", "--cluster")

    assert (healthy.exit_code, ill.exit_code) == (0, 1), healthy.output + ill.output
    found = json.loads(ill.stdout)
    assert (found["namespace"], found["healthy"]) == ("default", False)
    assert [(f["level"], f["code"]) for f in found["findings"]] == [("error", "Stalled")]
    assert "error Stalled: dataset/flights: TableNotFound: no table." in text.stdout
    assert "why dataset/flights" in text.stdout


@pytest.mark.parametrize("arguments", [(), ("flights", "--cluster")])
def test_it_examines_either_a_table_or_a_namespace(local: LocalApi, arguments: tuple[str, ...]) -> None:
    assert local.lethe("doctor", *arguments).exit_code == 2
