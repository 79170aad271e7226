"""The end of a run may be known before its result. Each watch is held back where it could mislead the operator."""

from datetime import UTC, datetime, timedelta
from typing import Any

from lethe.base.errors import EXIT_INPUT
from lethe.kube import CONFIG_MAPS, JOBS, LEASES, PODS, Document
from lethe_operator.reconcile import Reconciler
from lethe_operator.resources.common import KEY_PREFIX_LENGTH
from lethe_operator.settings import CommitterSettings, Settings
from pyiceberg.transforms import IdentityTransform

from tests.support.fake_cluster import Client, an_operator
from tests.support.small_lake import FLIGHTS, SmallLake

COMMITTER = "lethe-committer"
RUNS = "flights-runs"


def reads(client: Client) -> list[str]:
    return [r for r in client.requests if r.split()[0] in ("get", "list", "page")]


def settled(reconcile: Reconciler, client: Client) -> None:
    """Reconcile until there is nothing to write."""
    for _ in range(5):
        client.requests.clear()
        reconcile(FLIGHTS)
        if not client.requests:
            return
    raise AssertionError(f"each reconcile makes requests: {client.requests}")


def test_an_idle_reconcile_makes_no_request(lake: SmallLake) -> None:
    """Neither after runs and Restatements that have ended, nor with others that wait for a batch."""
    lake.ask("a")
    client = Client(lake.cluster)
    reconcile = lake.operator(client)
    reconcile(FLIGHTS)
    lake.end(lake.jobs()[0])
    settled(reconcile, client)
    assert lake.phases() == {"a": "Succeeded"}

    client.requests.clear()
    for _ in range(3):
        reconcile(FLIGHTS)

    assert client.requests == []


def test_a_job_that_has_ended_is_decided_on_its_result_although_the_watch_has_not_reported_it(lake: SmallLake) -> None:
    """Without its result, a run that refused its request would be repeated, and the ledger would not tell why."""
    lake.ask("a", reason="refuse")
    client = Client(lake.cluster)
    reconcile = lake.operator(client)
    reconcile(FLIGHTS)
    lake.cluster.held_back = {RUNS}
    lake.end(lake.jobs()[0])
    client.requests.clear()

    reconcile(FLIGHTS)

    assert reads(client) == ["get ConfigMap"]
    assert lake.phases() == {"a": "Failed"}
    assert len(lake.jobs()) == 1


def test_a_job_that_has_ended_without_a_result_is_decided_on_its_exit_code(lake: SmallLake) -> None:
    """The user has to change something: a Job whose pod is unknown would be repeated as if a node had failed."""
    lake.ask("a")
    client = Client(lake.cluster)
    reconcile = lake.operator(client)
    reconcile(FLIGHTS)
    (job,) = lake.jobs()
    lake.cluster.held_back = {PODS}
    lake.cluster.create(PODS, "ns", a_pod_that_ended(job, EXIT_INPUT))
    failed = {
        "type": "Failed",
        "status": "True",
        "reason": "PodFailurePolicy",
        "lastTransitionTime": "2026-03-01T12:00:00Z",
    }
    lake.cluster.patch(JOBS, "ns", job["metadata"]["name"], {"status": {"conditions": [failed]}})
    client.requests.clear()

    reconcile(FLIGHTS)

    assert reads(client) == ["get ConfigMap", "list Pod"]
    (shown,) = lake.status()["runs"]
    assert shown["phase"] == "Failed"
    assert "10" in shown["message"]
    settled(reconcile, client)


def a_pod_that_ended(job: Document, exit_code: int) -> Document:
    name = job["metadata"]["name"]
    ended = [{"name": "spark", "state": {"terminated": {"exitCode": exit_code, "reason": "Error"}}}]
    labels = {**job["metadata"]["labels"], "batch.kubernetes.io/job-name": name}
    metadata = {"name": f"{name}-x", "namespace": "ns", "labels": labels}
    return {"metadata": metadata, "status": {"phase": "Failed", "containerStatuses": ended}}


# --- the committer -----------------------------------------------------------------------------------------------------


def with_committer(lake: SmallLake) -> tuple[Reconciler, Client]:
    labels = {"app.kubernetes.io/name": "lethe"}
    lake.cluster.create(CONFIG_MAPS, "ns", {"metadata": {"name": COMMITTER, "labels": labels}, "data": {}})
    lake.cluster.create(LEASES, "ns", {"metadata": {"name": COMMITTER}, "spec": lease(datetime.now(UTC))})
    client = Client(lake.cluster)
    return an_operator(client, settings=Settings(committer=CommitterSettings(enabled=True))), client


def lease(renewed: datetime) -> dict[str, Any]:
    return {"holderIdentity": "pod", "renewTime": renewed.isoformat(), "leaseDurationSeconds": 30}


def mailbox(lake: SmallLake) -> dict[str, str]:
    found: dict[str, str] = lake.cluster.get(CONFIG_MAPS, "ns", COMMITTER).get("data") or {}
    return found


def carry_out(lake: SmallLake) -> None:
    """What the committer does: the commit, the result, and only then its mailbox."""
    (run,) = lake.runs()
    assert run.restatement is not None
    prefix = run.run_id[:KEY_PREFIX_LENGTH]
    lake._restate(run)
    lake.cluster.patch(CONFIG_MAPS, "ns", COMMITTER, {"data": {prefix: None}})


def dispatched(lake: SmallLake) -> tuple[Reconciler, Client]:
    """An operator that has handed a Revert to the committer."""
    lake.table.update_sort_order().asc("batch_id", IdentityTransform()).commit()  # as a run prepares it
    reconcile, client = with_committer(lake)
    lake.ask("a")
    reconcile(FLIGHTS)
    assert len(mailbox(lake)) == 1
    assert lake.jobs() == []
    return reconcile, client


def test_a_run_whose_entry_has_left_the_mailbox_is_decided_on_its_result(lake: SmallLake) -> None:
    """Otherwise the operator would put the entry into the mailbox again."""
    reconcile, client = dispatched(lake)
    lake.cluster.held_back = {RUNS}
    carry_out(lake)
    client.requests.clear()

    reconcile(FLIGHTS)

    assert reads(client) == ["get ConfigMap"]
    assert (mailbox(lake), lake.phases()) == ({}, {"a": "Succeeded"})


def test_a_committer_is_not_given_up_because_of_a_lease_that_the_watch_has_not_reported(lake: SmallLake) -> None:
    """Its run would be taken out of the mailbox, and a Job would carry it out beside it."""
    reconcile, client = dispatched(lake)
    lake.cluster.patch(LEASES, "ns", COMMITTER, {"spec": lease(datetime.now(UTC) - timedelta(minutes=5))})
    lake.cluster.held_back = {LEASES}
    lake.cluster.patch(LEASES, "ns", COMMITTER, {"spec": lease(datetime.now(UTC))})
    client.requests.clear()

    reconcile(FLIGHTS)

    assert reads(client) == ["get Lease", "get ConfigMap"]
    assert (len(mailbox(lake)), lake.jobs()) == (1, [])


def test_a_committer_that_is_really_gone_is_given_up(lake: SmallLake) -> None:
    reconcile, _ = dispatched(lake)
    lake.cluster.patch(LEASES, "ns", COMMITTER, {"spec": lease(datetime.now(UTC) - timedelta(minutes=5))})

    reconcile(FLIGHTS)
    reconcile(FLIGHTS)

    assert mailbox(lake) == {}
    assert len(lake.jobs()) == 1


# --- the table ---------------------------------------------------------------------------------------------------------


def test_the_table_is_loaded_after_the_end_of_a_run_is_known(lake: SmallLake) -> None:
    """The commit of a run that has ended must be part of the table that is decided on."""
    lake.ask("a")
    client = Client(lake.cluster)
    reconcile = lake.operator(client)
    view, fresh = reconcile.tables.view, []
    reconcile.tables.view = lambda dataset, fresh_=True, **more: (
        fresh.append(more.get("fresh", fresh_)) or view(dataset)
    )  # type: ignore
    reconcile(FLIGHTS)
    lake.end(lake.jobs()[0])
    reconcile(FLIGHTS)
    reconcile(FLIGHTS)

    assert fresh == [False, True, False]
