"""A status that another version or a person wrote stops no reconcile: what does not fit counts as absent."""

from typing import Any

import pytest

from tests.support.builders import NOW
from tests.support.resources import SETTINGS, a_dataset, a_policy, a_restatement, a_world
from tests.support.statuses import decide
from tests.unit.lethe_operator.deciding import A

WRONG: dict[str, Any] = {
    "observedGeneration": "many",
    "conditions": [{"type": "Ready", "status": "Perhaps"}, {"status": "True"}, 7],
    "table": {"uuid": 7, "snapshotId": "the last one", "acceptedHead": []},
    "runs": [{"name": "r"}, "run", {"name": "s", "kind": 3, "phase": "Succeeded"}],
    "vacuum": {
        "waitingSince": "yesterday",
        "lastRun": {"finishTime": "2026-01-02T03:04:05", "idleRuns": "x"},
        "plan": {"plannedTime": {}, "digest": 1},
        "measured": "fast",
        "requested": ["x"],
    },
    "batches": {"withheld": "x", "refusedBatches": [{"batchId": 4}, {}]},
    "source": 3,
    "phase": 4,
    "queuePosition": "first",
    "undoesKey": {},
    "plan": {"batchIds": {"count": "x", "sha256": 3}},
    "result": {"snapshotId": "x", "groupSize": []},
    "erasure": {"blockedBy": "x", "dueTime": 1.5e99},
    "datasets": [{"name": 1}, {"decision": "Later"}],
    "datasetsCount": "x",
    "fieldOfANewerVersion": {"a": 1},
}


@pytest.mark.parametrize(
    "wrong", [WRONG, dict.fromkeys(WRONG, 1.5), {k: [{}] for k in WRONG}, dict.fromkeys(WRONG), "x", []]
)
def test_values_of_the_wrong_type_count_as_absent(wrong: Any) -> None:
    def decided(status: Any) -> Any:
        world = a_world(A, restatements=(a_restatement(status=status),), policies=(a_policy(status=status),))
        return decide(a_dataset(status=status), world, NOW, SETTINGS)

    assert decided(wrong) == decided({})
