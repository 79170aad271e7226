"""A Dataset whose runs are SparkApplications, or wait in a queue, from the launch to the status."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lethe.kube import JOBS, SPARK_APPLICATIONS
from lethe_operator.settings import Settings
from pyiceberg.catalog import Catalog

from tests.support.resources import condition
from tests.unit.lethe_operator.tenant import Tenant

KUBEFLOW = replace(Settings(), spark_applications=True)


@pytest.fixture
def tenant(catalog: Catalog, tmp_path: Path) -> Tenant:
    return Tenant(catalog, tmp_path, settings=KUBEFLOW)


def the_application(tenant: Tenant) -> dict[str, Any]:
    (found,) = tenant.cluster.list(SPARK_APPLICATIONS, "ns")
    return found


def test_a_run_is_a_spark_application_and_ends_as_a_job_would(tenant: Tenant) -> None:
    tenant.dataset("a", "A", runTemplate={"launcher": "SparkApplication"})

    tenant.look_at("a", "a")

    name = the_application(tenant)["metadata"]["name"]
    assert tenant.jobs() == []
    assert tenant.shown("a") == [(name, "Pending")]

    tenant.finish("a")
    ended = {
        "applicationState": {"state": "COMPLETED"},
        "executionAttempts": 1,
        "terminationTime": "2026-03-01T12:00:09Z",
    }
    tenant.cluster.patch(SPARK_APPLICATIONS, "ns", name, {"status": ended})
    tenant.look_at("a")

    assert tenant.shown("a") == [(name, "Succeeded")]
    assert tenant.status("a")["batches"]["promoted"] == 1
    assert len(tenant.cluster.list(SPARK_APPLICATIONS, "ns")) == 1


def test_a_failed_spark_application_is_followed_by_another_one_and_deleted_later(tenant: Tenant) -> None:
    """Kubeflow's operator repeats nothing. Of many attempts, the last three stay."""
    tenant.dataset("a", "A", runTemplate={"launcher": "SparkApplication"})
    for _ in range(6):
        tenant.look_at("a", "a")
        for one in tenant.cluster.list(SPARK_APPLICATIONS, "ns"):
            if not one.get("status"):
                at = tenant.now.isoformat()
                failed = {"applicationState": {"state": "FAILED"}, "executionAttempts": 1, "terminationTime": at}
                tenant.cluster.patch(SPARK_APPLICATIONS, "ns", one["metadata"]["name"], {"status": failed})
        tenant.now = tenant.now.replace(year=tenant.now.year + 1)
    tenant.look_at("a", "a")

    numbers = [int(o["metadata"]["labels"]["lethe.dev/attempt"]) for o in tenant.cluster.list(SPARK_APPLICATIONS, "ns")]
    assert sorted(numbers)[-1] == 7
    assert 3 <= len(numbers) <= 4
    assert tenant.jobs() == []


def test_without_kubeflow_s_operator_the_dataset_is_stalled(catalog: Catalog, tmp_path: Path) -> None:
    tenant = Tenant(catalog, tmp_path)
    tenant.dataset("a", "A", runTemplate={"launcher": "SparkApplication"})

    tenant.look_at("a")

    assert condition(tenant.status("a"), "Stalled") == ("True", "LauncherNotAvailable")
    assert tenant.jobs() == tenant.cluster.list(SPARK_APPLICATIONS, "ns") == []


@pytest.mark.parametrize(("launcher", "kind"), [("Job", JOBS), ("SparkApplication", SPARK_APPLICATIONS)])
def test_a_run_with_a_queue_waits_and_no_other_one_starts(launcher: str, kind: Any, tenant: Tenant) -> None:
    """However long it waits: no time limit runs meanwhile."""
    tenant.dataset("a", "A", runTemplate={"launcher": launcher, "queue": "team-a"})
    tenant.look_at("a", "a")
    tenant.put("a", "B")
    tenant.now = tenant.now.replace(year=tenant.now.year + 1)

    tenant.look_at("a", "a")

    (one,) = tenant.cluster.list(kind, "ns")
    assert one["spec"]["suspend"] is True
    (run,) = tenant.status("a")["runs"]
    assert (run["phase"], run["reason"]) == ("Pending", "RunSuspended")
    assert tenant.status("a")["consolidation"]["reason"] == "RunSuspended"
    assert "PodWaiting" not in tenant.reasons("a")

    tenant.cluster.patch(kind, "ns", one["metadata"]["name"], {"spec": {"suspend": False}})
    tenant.look_at("a")

    assert tenant.status("a")["runs"][0].get("reason") != "RunSuspended"
    assert tenant.status("a")["consolidation"]["decision"] == "Running"
