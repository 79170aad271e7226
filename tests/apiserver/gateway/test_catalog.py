"""Datasets, Restatements, runs and vacuums, from the status that a real API server keeps."""

import httpx
from lethe.kube import DATASETS, VACUUM_POLICIES

from tests.support.gateway_lake import dataset
from tests.support.gateway_site import Site

DEFAULT = "/v1/namespaces/default"


def test_a_dataset_shows_its_status(analyst: httpx.Client) -> None:
    found = analyst.get(f"{DEFAULT}/datasets/flights").json()

    assert found["table"] == {"catalog": "lite", "name": "air.flights"}
    assert found["tableState"]["snapshotId"] == 8642949070972100074
    assert found["batches"] == {"promoted": 2, "reverted": 3, "refused": 1}
    assert found["refusedBatches"] == [{"batchId": "E", "reason": "SchemaMismatch"}]
    assert (found["ready"]["reason"], found["buffer"], found["tombstones"]) == (
        "Available",
        {"batches": 1, "bytes": 10},
        {"active": 2},
    )
    assert found["vacuum"]["plan"] == {"digest": "d1", "files": 3, "bytes": 30}
    assert [(r["name"], r["phase"]) for r in found["runs"]] == [("flights-1", "Writing"), ("flights-0", "Succeeded")]
    assert (found["activeRuns"], found["tracksBatches"]) == (1, True)
    assert found["freshness"].keys() == {"readTime", "resourceVersion"}


def test_a_dataset_without_a_status_is_shown(site: Site, analyst: httpx.Client) -> None:
    young = dataset("young", table="air.young")
    young["spec"]["batchTracking"] = {"enabled": False}
    site.server.kube.create(DATASETS, "default", young)
    try:
        found = analyst.get(f"{DEFAULT}/datasets/young").json()
        batches = analyst.get(f"{DEFAULT}/datasets/young/batches")
    finally:
        site.server.kube.delete(DATASETS, "default", "young")

    assert (found["activeRuns"], found["tracksBatches"], found["batches"], found["vacuum"]) == (0, False, {}, {})
    assert (batches.status_code, batches.json()["type"]) == (409, "https://lethe.dev/problems/no-table")


def test_a_restatement_says_why(analyst: httpx.Client) -> None:
    found = analyst.get(f"{DEFAULT}/restatements/revert-b").json()

    assert (found["operation"], found["dataset"], found["batchIds"]) == ("Revert", "flights", ["B"])
    assert found["reason"] == "sent twice"


def test_runs_of_a_namespace_and_of_a_dataset(analyst: httpx.Client) -> None:
    every = analyst.get(f"{DEFAULT}/runs").json()["items"]

    assert [r["name"] for r in every] == ["flights-1", "flights-0"]
    assert analyst.get(f"{DEFAULT}/runs", params={"active": True}).json()["items"] == every[:1]
    assert analyst.get(f"{DEFAULT}/datasets/flights/runs").json()["items"] == every
    assert analyst.get(f"{DEFAULT}/datasets/flights/runs", params={"active": True}).json()["items"] == every[:1]


def test_vacuums_by_decision(analyst: httpx.Client) -> None:
    (found,) = analyst.get(f"{DEFAULT}/vacuums", params={"decision": "NeedsApproval"}).json()["items"]

    assert (found["dataset"], found["plan"]["digest"]) == ("flights", "d1")
    assert analyst.get(f"{DEFAULT}/vacuums", params={"decision": "Due"}).json()["items"] == []


def test_vacuum_policies(site: Site, analyst: httpx.Client) -> None:
    window = {"schedule": "0 2 * * *", "timeZone": "Europe/Berlin", "durationSeconds": 7200}
    spec = {"datasetSelector": {}, "triggers": {"activeTombstones": 4}, "approval": "Manual", "window": window}
    policy = {"apiVersion": "lethe.dev/v1beta1", "kind": "VacuumPolicy", "metadata": {"name": "nightly"}, "spec": spec}
    site.server.kube.create(VACUUM_POLICIES, "default", policy)

    (found,) = analyst.get(f"{DEFAULT}/vacuumpolicies").json()["items"]

    site.server.kube.delete(VACUUM_POLICIES, "default", "nightly")
    assert found == {"name": "nightly", "approval": "Manual", **window, "conditions": []}
