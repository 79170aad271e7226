"""The Job that several Datasets share: how it is made, found again, and read part by part."""

import json
from typing import Any

import pytest
from lethe.contract.result import Phase, Progress
from lethe.contract.run import RunMember, RunPointer, RunSpec
from lethe_operator.build import names
from lethe_operator.build.dataset_objects import shared_job_objects
from lethe_operator.build.job import shared_job
from lethe_operator.build.sizing import size
from lethe_operator.decide.runs.history import entry
from lethe_operator.decide.runs.retry import failure
from lethe_operator.handlers.watch_events import datasets_of
from lethe_operator.observe.documents import Documents
from lethe_operator.observe.run_objects import of_job
from lethe_operator.observe.runs import runs_of
from lethe_operator.resources.dataset import RunTemplate
from lethe_operator.resources.members import member_label, members_of, needed_by
from lethe_operator.resources.observed import Attempt, AttemptState
from lethe_operator.settings import Settings, SharedRuns

from tests.support.builders import NOW, ago
from tests.support.resources import a_consolidation, a_dataset, a_result

SETTINGS = Settings(shared_runs=SharedRuns(enabled=True))
LONG = "x" * 63
RUNS = {name: a_consolidation(dataset=a_dataset(name)) for name in ("a", "b", LONG)}
A, B = RUNS["a"], RUNS["b"]


def a_job(*runs: RunSpec, template: Any = None, **status: Any) -> dict[str, Any]:
    chosen = [(r, 4) for r in runs or RUNS.values()]
    document = shared_job(chosen, size(0, RunTemplate()), template or {}, SETTINGS)
    document["metadata"]["creationTimestamp"] = ago(minutes=5).isoformat()
    document["status"] = status
    return document


def test_its_name_follows_from_the_attempts_in_any_order() -> None:
    name = names.shared_job([A, B])

    assert name == names.shared_job([B, A]) != names.shared_job([A])
    assert name != names.shared_job([A, B.model_copy(update={"attempt": 2})])
    assert len(name) <= 63


def test_all_members_own_it_and_none_controls_it() -> None:
    """The last of them to go takes it along."""
    owners = a_job()["metadata"]["ownerReferences"]

    assert [o["uid"] for o in owners] == ["uid-a", "uid-b", f"uid-{LONG}"]
    assert {(o["controller"], o["blockOwnerDeletion"]) for o in owners} == {(False, False)}


def test_each_member_finds_it_and_its_pod_by_a_label_that_fits() -> None:
    document = a_job()

    for metadata in (document["metadata"], document["spec"]["template"]["metadata"]):
        assert needed_by(metadata) == {"uid-a", "uid-b", f"uid-{LONG}"}
        assert metadata["labels"][member_label("uid-a")] == A.run_id
        assert [m.dataset for m in members_of(metadata)] == ["a", "b", LONG]
        assert datasets_of({"metadata": metadata}) == {"a", "b", LONG}
    for key, value in document["metadata"]["labels"].items():
        assert len(value) <= 63
        assert key.startswith("member.") or len(key.rpartition("/")[2]) <= 63
    uid = "0f8fad5b-d9cb-469f-a165-70867728950e"
    assert len(member_label(uid).rpartition("/")[2]) == 36


def test_a_pod_template_cannot_claim_other_members() -> None:
    theirs = {"metadata": {"annotations": {"lethe.dev/members": "[]"}, "labels": {"lethe.dev/shared": "false"}}}

    metadata = a_job(template=theirs)["spec"]["template"]["metadata"]

    assert len(members_of(metadata)) == 3
    assert metadata["labels"]["lethe.dev/shared"] == "true"


def test_the_driver_gets_each_run_and_starts_without_that_of_a_deleted_dataset() -> None:
    spec = a_job(A, B)["spec"]["template"]["spec"]

    (container,) = spec["containers"]
    env = {e["name"]: e.get("value") for e in container["env"]}
    told = [RunMember.model_validate(m) for m in json.loads(env["LETHE_RUN_MEMBERS"])]
    assert [(m.run_file, m.config_map, m.prefix) for m in told] == [
        ("/etc/lethe/run/0.run.json", "a-runs", A.run_id[:12]),
        ("/etc/lethe/run/1.run.json", "b-runs", B.run_id[:12]),
    ]
    assert not {"LETHE_RUN_FILE", "LETHE_STATUS_CONFIGMAP", "LETHE_STATUS_PREFIX"} & env.keys()
    (runs,) = [v["projected"]["sources"] for v in spec["volumes"] if v["name"] == "run"]
    assert [(s["configMap"]["name"], s["configMap"]["optional"]) for s in runs] == [("a-runs", True), ("b-runs", True)]
    assert runs[1]["configMap"]["items"] == [{"key": f"{B.run_id[:12]}.run.json", "path": "1.run.json"}]
    assert spec["serviceAccountName"] == names.shared_job([A, B])
    assert "spark.master=local[2]" in container["args"]


def test_its_driver_may_touch_the_config_maps_of_its_members_and_nothing_else() -> None:
    account, role, binding = shared_job_objects([A, B])

    name = names.shared_job([A, B])
    assert {name} == {o["metadata"]["name"] for o in (account, role, binding)}
    assert [[owner["uid"] for owner in o["metadata"]["ownerReferences"]] for o in (account, role, binding)] == [
        ["uid-a", "uid-b"]
    ] * 3
    assert role["rules"] == [
        {
            "apiGroups": [""],
            "resources": ["configmaps"],
            "resourceNames": ["a-runs", "b-runs"],
            "verbs": ["get", "patch"],
        }
    ]
    assert (binding["roleRef"]["name"], [s["name"] for s in binding["subjects"]]) == (name, [name])
    assert account["automountServiceAccountToken"] is False


@pytest.mark.parametrize(
    ("metadata", "found"),
    [
        ({"ownerReferences": [{"kind": "Dataset", "name": "a"}, {"kind": "Dataset", "name": "b"}]}, {"a", "b"}),
        ({"ownerReferences": [{"kind": "Job", "name": "j"}], "annotations": {"lethe.dev/dataset": "a"}}, {"a"}),
        ({"ownerReferences": [{"kind": "Job", "name": "j"}]}, set()),
        ({}, set()),
    ],
    ids=["a Job", "a driver's pod", "somebody's pod", "nothing"],
)
def test_an_event_wakes_every_dataset_that_the_object_belongs_to(metadata: Any, found: set[str]) -> None:
    assert datasets_of({"metadata": metadata}) == found


# --- a member's part ------------------------------------------------------------------------------------------------


def no_pointer(_: RunPointer) -> bytes:
    raise AssertionError("no pointer here")


never = Documents(no_pointer)


def part(job: dict[str, Any], data: dict[str, str] | None = None, *pods: Any, of: RunSpec = B) -> Attempt:
    (run,) = runs_of(of.dataset.uid, [of_job(job)], pods, data or {}, never)
    assert run.last is not None
    return run.last


def over(type: str = "Complete", reason: str = "") -> dict[str, Any]:
    return {"conditions": [{"type": type, "status": "True", "reason": reason, "lastTransitionTime": NOW.isoformat()}]}


def begun(run: RunSpec = B, attempt: int = 1) -> dict[str, str]:
    told = Progress(run_id=run.run_id, attempt=attempt, phase=Phase.READING, updated_time=NOW)
    return {f"{run.run_id[:12]}.progress.json": told.to_json()}


def ended(outcome: str = "Committed", **changes: Any) -> dict[str, str]:
    return {**begun(), f"{B.run_id[:12]}.result.json": a_result(B, outcome, **changes).to_json()}


OUT_OF_MEMORY = {
    "metadata": {"name": "p", "labels": {"job-name": names.shared_job(RUNS.values())}},
    "status": {
        "phase": "Failed",
        "containerStatuses": [
            {"name": "spark", "state": {"terminated": {"exitCode": 137, "reason": "OOMKilled", "message": "{}"}}}
        ],
    },
}


@pytest.mark.parametrize(
    ("status", "data", "state", "exit_code"),
    [
        ({}, {}, AttemptState.ACTIVE, None),
        ({}, begun(), AttemptState.ACTIVE, None),
        ({}, ended(), AttemptState.SUCCEEDED, 0),
        ({}, ended("NothingToDo"), AttemptState.SUCCEEDED, 0),
        ({}, ended("Failed", reason="Away"), AttemptState.FAILED, 20),
        ({}, ended("Failed", reason="Odd", permanent=True), AttemptState.FAILED, 10),
        (over("Failed"), ended(), AttemptState.SUCCEEDED, 0),
        (over(), ended("Failed", reason="Away"), AttemptState.FAILED, 20),
        (over(), {}, AttemptState.FAILED, None),
        (over("Failed"), begun(), AttemptState.FAILED, None),
        (over("Failed"), begun(attempt=2), AttemptState.FAILED, None),
    ],
)
def test_a_part_ends_with_its_own_result_whatever_becomes_of_the_job(
    status: Any, data: dict[str, str], state: AttemptState, exit_code: int | None
) -> None:
    found = part(a_job(**status), data)

    assert (found.run_id, found.generation, found.datasets) == (B.run_id, 4, 3)
    assert (found.state, found.exit_code, found.finished is None) == (state, exit_code, state is AttemptState.ACTIVE)


def test_when_a_part_ended_is_its_result_s_to_say() -> None:
    assert part(a_job(**over()), ended()).finished == ago(seconds=30)


def test_out_of_memory_was_the_part_that_the_driver_was_at() -> None:
    job = a_job(**over("Failed"))

    told = {
        "at it": failure(part(job, begun(), OUT_OF_MEMORY)),
        "to come": failure(part(job, {}, OUT_OF_MEMORY)),
    }
    done = part(job, ended(), OUT_OF_MEMORY)

    assert {k: str(reason) for k, (reason, _) in told.items()} == {"at it": "OOMKilled", "to come": "SharedRunEnded"}
    assert "which 3 Datasets share, ended before it started the run of this Dataset" in told["to come"][1]
    assert (done.state, done.oom) == (AttemptState.SUCCEEDED, False)


def test_a_job_in_which_a_dataset_has_no_part_is_not_its() -> None:
    assert runs_of("uid-c", [of_job(a_job())], [], {}, never) == ()


def test_a_part_that_waits_for_its_turn_shows_it() -> None:
    running = {**OUT_OF_MEMORY, "status": {"phase": "Running"}}

    waiting = entry(part(a_job(), {}, running), committed=False, now=NOW)
    reading = entry(part(a_job(), begun(), running), committed=False, now=NOW)

    assert waiting["message"] == "Waiting for its turn in a run that 3 Datasets share."
    assert (reading["phase"], "message" in reading) == ("Reading", False)
