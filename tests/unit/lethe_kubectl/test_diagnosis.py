"""What `lethe doctor --cluster` finds in a namespace."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from lethe_kubectl.diagnosis import SeenNamespace, diagnose_namespace
from lethe_kubectl.errors import ResourcePlace

NOW = datetime(2026, 11, 28, 22, tzinfo=UTC)
PLACE = ResourcePlace("context far", "https://127.0.0.1:1", "ns", "kubectl --context far", "lethe {}")


def ago(**time: float) -> str:
    return (NOW - timedelta(**time)).isoformat()


def a_lease(**since: float) -> dict[str, Any]:
    return {"spec": {"renewTime": ago(**since), "leaseDurationSeconds": 15}}


ALIVE = {"lethe-operator": a_lease(seconds=10), "lethe-committer": a_lease(seconds=10)}


def a_resource(kind: str = "dataset", generation: int = 1, observed: int = 1, **conditions: str) -> tuple[str, Any]:
    found = [{"type": t, "status": s, "reason": "Because", "message": "of something."} for t, s in conditions.items()]
    metadata = {"name": "x", "generation": generation, "creationTimestamp": ago(hours=1)}
    return kind, {"metadata": metadata, "status": {"conditions": found, "observedGeneration": observed}}


def codes(*resources: tuple[str, Any], leases: Any = ALIVE) -> list[tuple[str, str]]:
    found = diagnose_namespace(SeenNamespace("ns", resources, leases), NOW, PLACE)
    return [(f.level.value, f.code) for f in found]


def test_a_healthy_namespace_has_no_finding() -> None:
    assert codes(a_resource(Ready="True"), a_resource("restatement", Succeeded="True")) == []
    assert codes(leases=None) == []


@pytest.mark.parametrize("leases", [{}, {"lethe-operator": a_lease(minutes=2)}, {"lethe-operator": {"spec": {}}}])
def test_a_namespace_in_which_no_operator_acts_is_an_error(leases: Any) -> None:
    assert codes(leases=leases) == [("error", "NoOperatorActs")]


@pytest.mark.parametrize(
    ("resource", "expected"),
    [
        (a_resource(Stalled="True", Ready="False"), ("error", "Stalled")),
        (a_resource("vacuumpolicy", Stalled="True"), ("error", "Stalled")),
        (a_resource(Ready="False"), ("warning", "NotReady")),
        (a_resource(EvictionOnTime="False"), ("error", "EvictionLate")),
        (a_resource(SourceRead="False"), ("warning", "SourceRead")),
        (a_resource(Paused="True"), ("note", "Paused")),
        (a_resource(generation=2), ("error", "NotObserved")),
    ],
)
def test_each_problem_of_a_resource_is_found_and_says_what_to_run(
    resource: tuple[str, Any], expected: tuple[str, str]
) -> None:
    seen = SeenNamespace("ns", [resource], ALIVE)

    (finding,) = diagnose_namespace(seen, NOW, PLACE)

    assert (finding.level.value, finding.code) == expected
    assert finding.do == f"lethe why {resource[0]}/x"


def test_a_committer_that_went_away_is_a_warning_and_errors_come_first() -> None:
    leases = {**ALIVE, "lethe-committer": a_lease(hours=1)}

    assert codes(a_resource(Stalled="True"), leases=leases) == [("error", "Stalled"), ("warning", "CommitterAway")]


def test_what_failed_in_the_last_day_is_a_warning() -> None:
    runs = [{"name": "v-1", "kind": "Vacuum", "phase": "Failed", "finishTime": ago(hours=2)}]
    kind, dataset = a_resource(Ready="True")

    assert codes((kind, {**dataset, "status": {**dataset["status"], "runs": runs}})) == [("warning", "RunFailed")]


def test_the_pods_of_a_committer_are_looked_for_where_it_is() -> None:
    leases = {**ALIVE, "lethe-committer": a_lease(hours=1)}

    (finding,) = diagnose_namespace(SeenNamespace("ns", (), leases), NOW, PLACE)

    assert finding.do == "kubectl --context far get pods -n ns -l app.kubernetes.io/component=committer"
