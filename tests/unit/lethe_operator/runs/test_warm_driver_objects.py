"""The Job of the warm driver, and how it is started, seen and replaced."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from lethe.contract.kubernetes import GIB
from lethe.contract.run import MailboxEntry
from lethe.kube import CONFIG_MAPS, JOBS, PODS, ROLE_BINDINGS
from lethe_operator.actions import Launch
from lethe_operator.dataset.observe import warm_driver_view
from lethe_operator.resources.boundaries import Boundaries, Boundary, PodLimits
from lethe_operator.resources.common import DISPATCH_KEY
from lethe_operator.resources.observed import Attempt, AttemptState, Dispatch, Engine, WorkerView
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.runs import job as warm_driver
from lethe_operator.runs import names
from lethe_operator.runs.launch import cancel, launch, replace_outdated, start_warm_driver
from lethe_operator.settings import CommitterSettings, Settings, WarmDriverSettings

from tests.support.builders import NOW
from tests.support.fake_cluster import FakeCluster, watched
from tests.support.resources import a_dataset, a_group, a_replay, a_table

NAME = "lethe-warm-driver"
SETTINGS = Settings(
    warm_drivers=WarmDriverSettings(enabled=True), committer=CommitterSettings(enabled=True), spark_image="spark:1"
)
ENDED = {"conditions": [{"type": "Complete", "status": "True"}]}
RUNNING = {"phase": "Running", "containerStatuses": [{"name": "spark", "state": {"running": {}}}]}
SPEC = a_group(a_replay("A", "A2", "replay"))


def a_server(mailbox: str = NAME) -> FakeCluster:
    labels = {"app.kubernetes.io/name": "lethe"}
    return FakeCluster((CONFIG_MAPS, {"metadata": {"namespace": "ns", "name": mailbox, "labels": labels}}))


def started(server: FakeCluster, settings: Settings = SETTINGS) -> bool:
    return start_warm_driver(server, "ns", settings)  # type: ignore[arg-type]


def the_job(server: FakeCluster) -> Any:
    return server.get(JOBS, "ns", NAME)


def a_pod(server: FakeCluster, **status: Any) -> None:
    labels = {"app.kubernetes.io/managed-by": "lethe", "batch.kubernetes.io/job-name": NAME}
    metadata = {"namespace": "ns", "name": f"{NAME}-x", "labels": labels}
    server.create(PODS, "ns", {"metadata": metadata, "status": status})


def view(server: FakeCluster) -> WorkerView:
    return warm_driver_view(watched(server), "ns", NAME, NOW)


def test_its_pod_is_a_drivers_with_its_own_account_and_no_values_of_erases() -> None:
    job = warm_driver.warm_driver_job("ns", "uid-box", SETTINGS)
    pod = job["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    env = {e["name"]: e.get("value") for e in container["env"]}

    assert container["args"][0] == "warm-driver"
    assert "spark.master=local[2]" in container["args"]
    assert (pod["spec"]["restartPolicy"], pod["spec"]["serviceAccountName"]) == ("OnFailure", NAME)
    assert pod["metadata"]["labels"]["lethe.dev/role"] == "driver"  # which the chart's NetworkPolicies select
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert {v["name"] for v in pod["spec"]["volumes"]} == {"run", "catalogs", "tmp", "scratch", "digest-key"}
    assert int(env["LETHE_WARM_MEMORY_BYTES"] or 0) < 2 * GIB
    assert int(env["LETHE_WARM_DISK_BYTES"] or 0) < 8 * GIB
    assert "activeDeadlineSeconds" not in job["spec"]
    assert [(o["kind"], o["uid"]) for o in job["metadata"]["ownerReferences"]] == [("ConfigMap", "uid-box")]


def test_the_pod_of_the_values_driver_has_the_secrets_of_its_runs_and_no_other_right() -> None:
    secrets = (SecretFile.of("erase-1", "values", "uid-request"), SecretFile.of("erase-hash", "key", "uid-request"))
    without, with_values = (
        warm_driver.warm_driver_job("ns", "uid-box", SETTINGS, Engine.VALUES_DRIVER, s) for s in ((), secrets)
    )
    pod = with_values["spec"]["template"]["spec"]
    (volume,) = (v for v in pod["volumes"] if v["name"] == "erase")
    env = {e["name"]: e.get("value") for e in pod["containers"][0]["env"]}

    assert with_values["metadata"]["name"] == f"{NAME}-values"
    assert pod["serviceAccountName"] == NAME
    mounted = {s["secret"]["name"]: s["secret"]["items"][0]["path"] for s in volume["projected"]["sources"]}
    assert mounted == {s.secret: s.file for s in secrets}
    assert (env["LETHE_WARM_FILES"] or "").split(",") == [s.file for s in secrets]
    assert env["LETHE_WARM_IDLE_SECONDS"] == "60"
    digests = {j["metadata"]["annotations"][warm_driver.ANNOTATION_DIGEST] for j in (without, with_values)}
    assert len(digests) == 1  # other Secrets are no reason to replace it


def test_a_run_with_values_names_its_files_in_the_mailbox_and_its_secrets_in_the_note() -> None:
    server = a_server(f"{NAME}-values")
    secrets = (SecretFile.of("erase-1", "values", "uid-request"),)
    given = Launch(SPEC, 0, 3, "a test", "uid-r", Engine.VALUES_DRIVER, secrets=secrets)

    launch(server, a_dataset(), given, a_table(), NOW, SETTINGS)  # type: ignore[arg-type]

    prefix = names.key_prefix(SPEC.run_id)
    entry = MailboxEntry.model_validate_json(server.get(CONFIG_MAPS, "ns", f"{NAME}-values")["data"][prefix])
    note = Dispatch.model_validate_json(
        server.get(CONFIG_MAPS, "ns", "flights-runs")["data"][f"{prefix}{DISPATCH_KEY}"]
    )
    assert entry.files == (secrets[0].file,)
    assert (note.engine, note.secrets) == (Engine.VALUES_DRIVER, secrets)


def test_it_stays_within_the_boundary_of_its_namespace() -> None:
    small = Boundaries(default=Boundary(driver=PodLimits(memory=GIB)))

    job = warm_driver.warm_driver_job("ns", "uid", replace(SETTINGS, boundaries=small))

    assert job["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"]["memory"] == str(GIB)


def test_it_is_started_once_and_again_after_it_has_ended() -> None:
    server = a_server()

    assert started(server)
    first = the_job(server)
    assert started(server)
    assert the_job(server) == first
    server.patch(JOBS, "ns", NAME, {"status": ENDED})
    assert not started(server)  # the Job that has ended is deleted first
    assert started(server)

    assert "status" not in the_job(server)


def test_without_a_mailbox_nothing_starts() -> None:
    server = FakeCluster()

    assert started(server)

    assert server.list(JOBS, "ns") == []


@pytest.mark.parametrize(("image", "is_replaced"), [("spark:1", False), ("spark:2", True)])
def test_after_an_upgrade_it_is_replaced(image: str, is_replaced: bool) -> None:
    server = a_server()
    started(server)

    replace_outdated(server, the_job(server), replace(SETTINGS, spark_image=image))  # type: ignore[arg-type]

    assert (server.list(JOBS, "ns") == []) == is_replaced


def test_it_is_alive_while_its_container_runs() -> None:
    server = a_server()
    assert view(server) == WorkerView(alive=False)
    started(server)
    assert view(server) == WorkerView(alive=False, starting=True)
    a_pod(server, phase="Pending")
    assert view(server) == WorkerView(alive=False, starting=True)
    server.patch(PODS, "ns", f"{NAME}-x", {"status": RUNNING})
    assert view(server) == WorkerView(alive=True, starting=True)
    server.patch(JOBS, "ns", NAME, {"status": ENDED})
    assert view(server) == WorkerView(alive=False)


@pytest.mark.parametrize(
    ("text", "is_away"),
    [
        ((NOW + timedelta(seconds=1)).isoformat(), True),
        (NOW.isoformat(), False),
        ("2999-01-01T00:00:00", False),
        ("soon", False),
    ],
    ids=["until later", "until now", "no time zone", "no time"],
)
def test_its_mailbox_says_until_when_it_stays_away(text: str, is_away: bool) -> None:
    server = a_server()
    server.patch(CONFIG_MAPS, "ns", NAME, {"metadata": {"annotations": {"lethe.dev/away-until": text}}})

    assert (view(server).away_until is not None) == is_away


def test_its_mailbox_shows_what_was_given_and_what_was_cancelled() -> None:
    server = a_server()
    given = Launch(SPEC, 0, 3, "a test", "uid-r", Engine.WARM_DRIVER)
    launch(server, a_dataset(), given, a_table(), NOW, SETTINGS)  # type: ignore[arg-type]
    key = names.key_prefix(SPEC.run_id)
    assert view(server).mailbox == {key}
    attempt = Attempt(SPEC.attempt_name, SPEC.run_id, SPEC.kind, 1, AttemptState.ACTIVE, NOW, engine=Engine.WARM_DRIVER)

    cancel(server, SPEC.dataset, [attempt], SETTINGS)  # type: ignore[arg-type]

    entry = MailboxEntry.model_validate_json(server.get(CONFIG_MAPS, "ns", NAME)["data"][key])
    assert (entry.cancelled, entry.created_time) == (True, NOW)
    assert view(server).cancelled == {key}
    bound = {b["metadata"]["name"]: [s["name"] for s in b["subjects"]] for b in server.list(ROLE_BINDINGS, "ns")}
    assert bound["flights-reports"] == ["lethe-committer", NAME]
