"""What is not settled yet, by the documents of the API server."""

from typing import Any

import pytest

from tests.cluster.chaos.settled import WARM_DRIVER, unsettled


def conditions(**statuses: str) -> list[dict[str, str]]:
    return [{"type": kind, "status": status, "reason": "R"} for kind, status in statuses.items()]


def a_dataset(**status: Any) -> dict[str, Any]:
    settled = {"observedGeneration": 2, "conditions": conditions(Ready="True", Stalled="False")}
    return {"metadata": {"name": "d", "generation": 2}, "status": settled | status}


def a_restatement(operation: str = "Revert", **statuses: str) -> dict[str, Any]:
    wanted = {"Succeeded": "True", "Ready": "True", "Stalled": "False"} | statuses
    return {
        "metadata": {"name": "r"},
        "spec": {"operation": operation},
        "status": {"conditions": conditions(**wanted)},
    }


def a_job(name: str, *ends: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "status": {"conditions": conditions(**dict.fromkeys(ends, "True"))}}


def test_all_is_settled() -> None:
    dataset = a_dataset(
        runs=[{"name": "run", "finishTime": "2024-01-01T00:00:00Z"}],
        buffer={"batches": 0},
        erasures={"open": 0},
        vacuum={"decision": "Later"},
    )
    requests = [a_restatement(), a_restatement("Erase", Erased="True")]

    assert unsettled([dataset], requests, [a_job("one", "Complete"), a_job("two", "Failed")], ()) == []


@pytest.mark.parametrize(
    ("status", "said"),
    [
        ({"observedGeneration": 1}, "its last edit is not observed"),
        ({"conditions": conditions(Ready="False", Stalled="False")}, "Ready=False"),
        ({"conditions": conditions(Ready="True", Stalled="True")}, "Stalled=True"),
        ({"runs": [{"name": "run", "phase": "Writing"}]}, "run run is active (Writing)"),
        ({"buffer": {"batches": 2}}, "2 batches wait"),
        ({"erasures": {"open": 1}}, "1 erasures are open"),
        ({"vacuum": {"decision": "Running", "reason": "R"}}, "vacuum Running"),
    ],
)
def test_a_dataset_is_not_settled(status: dict[str, Any], said: str) -> None:
    (end,) = unsettled([a_dataset(**status)], [], [], ())

    assert said in end.text
    assert not end.held


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (a_restatement(Succeeded="Unknown"), "Succeeded=Unknown"),
        (a_restatement(Stalled="True"), "Stalled=True"),
        (a_restatement("Erase"), "Erased=None"),
        (a_restatement("Erase", Erased="False"), "Erased=False"),
    ],
)
def test_a_restatement_is_not_settled(body: dict[str, Any], said: str) -> None:
    (end,) = unsettled([], [body], [], ())

    assert said in end.text
    assert not end.held


def test_an_erasure_that_something_blocks_is_held() -> None:
    restatement = a_restatement("Erase")
    blocked = {"type": "Erased", "status": "False", "reason": "ErasureBlocked"}
    restatement["status"]["conditions"].append(blocked)
    datasets = [a_dataset(erasures={"open": 2, "blocked": 2}), a_dataset(erasures={"open": 2, "blocked": 1})]

    assert [end.held for end in unsettled(datasets, [restatement], [], ())] == [True, False, True]


def test_a_restatement_that_was_refused_is_settled() -> None:
    assert unsettled([], [a_restatement(Succeeded="False")], [], {"r"}) == []


def test_a_job_is_active_until_it_ends_except_the_warm_driver() -> None:
    (end,) = unsettled([], [], [a_job("one"), a_job(WARM_DRIVER)], ())

    assert end.text == "Job one is active"
