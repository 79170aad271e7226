"""The benchmark of the operator: its copies of a table, its fake node, and its report."""

import json
from datetime import UTC, datetime
from typing import Any

import pytest
from lethe.base import names
from lethe.contract.result import RunOutcome
from lethe.ledger.root import Chunk, Root, decode_root
from lethe_operator.resources.observed import AttemptState
from lethe_operator.runs.observe import attempt_of, of_job

from bench import fleet, operator, report
from bench.fleet import Copy, Template, metadata_uri
from bench.operator_process import environment_of

LOCATION = "s3://lake/warehouse/bench/t"
UUID = "7b0a1a6e-4a1c-4f57-9a2b-0e1b7c7f6a11"
NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
WAITING, NONE_WAITS = Copy(1), Copy(3)


def a_template() -> Template:
    folder = f"{LOCATION}/{names.LEDGER_FOLDER}"
    chunk = Chunk("1-tombstones.avro", 0, 10)
    root = Root(UUID, 1, "run", {"tombstones": (chunk,)}, locations=((LOCATION, {}),))
    summary = {names.LEDGER: f"{folder}/1-root.json", "manifest": f"{LOCATION}/metadata/m.avro"}
    metadata = {
        "location": LOCATION,
        "table-uuid": UUID,
        "metadata-log": [{"metadata-file": "before"}],
        "properties": {names.CLAIM: "default/template", names.LEDGER_BEGUN: UUID},
        "snapshots": [{"summary": summary, "manifest-list": f"{LOCATION}/metadata/snap.avro"}],
    }
    batches = {
        "location": f"{LOCATION}_batches",
        "table-uuid": "b",
        "metadata-log": [],
        "properties": {names.TRACKS: UUID},
        "snapshots": [{"summary": {names.TRACKING_LEDGER: f"{folder}/1-root.json"}}],
    }
    files = {"1-root.json": root.encode(), "1-tombstones.avro": b"avro"}
    return Template(LOCATION, UUID, metadata, files, batches, f"{LOCATION}_batches")


def test_a_copy_of_a_table_has_its_own_ledger_and_shares_the_manifests() -> None:
    objects = dict(a_template().objects(WAITING))

    metadata = json.loads(objects[metadata_uri(WAITING.location)])
    (snapshot,) = metadata["snapshots"]
    pointer = snapshot["summary"][names.LEDGER]
    root = decode_root(objects[pointer], pointer, WAITING.uuid)
    assert pointer.startswith(f"{WAITING.location}/{names.LEDGER_FOLDER}/")
    assert root.locations == ((WAITING.location, {}),)
    assert f"{WAITING.location}/{names.LEDGER_FOLDER}/{root.parts['tombstones'][0].file}" in objects
    assert snapshot["manifest-list"] == f"{LOCATION}/metadata/snap.avro"
    assert metadata["properties"] == {names.CLAIM: f"default/{WAITING.name}", names.LEDGER_BEGUN: WAITING.uuid}
    assert (metadata["location"], metadata["table-uuid"]) == (WAITING.location, WAITING.uuid)
    assert metadata["metadata-log"] == []


def test_a_copy_of_a_table_of_batches_shows_the_copied_ledger() -> None:
    objects = dict(a_template().objects(WAITING))

    batches = json.loads(objects[metadata_uri(WAITING.batches_location)])
    assert batches["properties"][names.TRACKS] == WAITING.uuid
    assert batches["snapshots"][0]["summary"][names.TRACKING_LEDGER] in objects


def a_status(copy: Copy) -> dict[str, Any]:
    return {
        "metadata": {"name": copy.name, "generation": 2},
        "status": {
            "observedGeneration": 2,
            "conditions": [{"type": "Ready", "status": "True", "reason": "Available"}],
            "table": {"uuid": copy.uuid},
            "batches": {"promoted": 3},
            "buffer": {"batches": copy.waiting},
            "consolidation": {"reason": "BelowTriggers" if copy.waiting else "NothingWaits"},
        },
    }


@pytest.mark.parametrize("copy", [WAITING, NONE_WAITS])
def test_a_status_is_correct_only_if_it_shows_table_buffer_and_decision(copy: Copy) -> None:
    assert copy.wrong(a_status(copy)) == ""
    assert "observedGeneration" in copy.wrong({"metadata": {"generation": 1}})
    for key in ("observedGeneration", "conditions", "table", "batches", "buffer", "consolidation"):
        body = a_status(copy)
        del body["status"][key]
        assert copy.wrong(body), key


def test_the_operator_reads_the_result_of_a_pod_on_the_fake_node() -> None:
    labels = {"lethe.dev/run-id": "a" * 32, "lethe.dev/attempt": "1", "lethe.dev/kind": "Consolidation"}
    pod = {"metadata": {"name": "p", "labels": labels}}
    job = {
        "metadata": {"name": "j", "labels": labels, "creationTimestamp": "2026-03-01T12:00:00Z"},
        "status": {"conditions": [{"type": "Complete", "status": "True"}], "completionTime": "2026-03-01T12:00:00Z"},
    }

    attempt = attempt_of(of_job(job), {**pod, "status": fleet.succeeded(pod, NOW)}, (), {}, None)  # type: ignore[arg-type]

    assert attempt.state is AttemptState.SUCCEEDED
    assert attempt.exit_code == 0
    assert attempt.result is not None
    assert attempt.result.outcome is RunOutcome.NOTHING_TO_DO


def test_the_process_has_the_settings_of_the_deployment() -> None:
    env = [
        {"name": "LETHE_RESYNC_SECONDS", "value": "15"},
        {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}},
        {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}},
    ]
    deployment = {"spec": {"template": {"spec": {"containers": [{"env": env}]}}}}

    assert environment_of(deployment, "system") == {"LETHE_RESYNC_SECONDS": "15", "POD_NAMESPACE": "system"}


def test_launches_are_held_only_if_they_are_in_time() -> None:
    result = {"per_minute": 200, "in_time_per_minute": 199.0, "due_to_launched": [1.0] * 99 + [40.0]}

    rate, late = operator.goals({"launches": {"results": [result]}})

    assert rate["met"] == report.NO
    assert (late["measured"], late["met"]) == (1.0, report.YES)


def test_reverts_beside_a_vacuum_are_compared_by_their_medians() -> None:
    result = {"without": {"to_committed": [1.0, 2.0, 9.0]}, "beside": {"to_committed": [3.0, 3.0, 3.0]}}

    (found,) = operator.goals({"vacuum": {"results": [result]}})

    assert (found["measured"], found["met"]) == (1.5, report.NO)
