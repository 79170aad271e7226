"""The objects of a run: what matters to Kubernetes, to Pod Security and to the run contract."""

import json
from dataclasses import replace
from typing import Any

import pytest
from lethe.base.objects import LockMode, Retention
from lethe.buffer.digest import waiting
from lethe.contract.dataset import RunTemplate
from lethe.contract.kubernetes import GIB, MIB
from lethe.contract.run import DatasetRef
from lethe_operator.actions import Launch
from lethe_operator.runs import names, pod
from lethe_operator.runs import spec as run_specs
from lethe_operator.runs.job import run_object
from lethe_operator.runs.pod import Size, size
from lethe_operator.runs.rights import dataset_objects
from lethe_operator.settings import RunLimits, Settings
from lethe_spark.jobs.erasure.close import RETENTION_VARIABLE
from lethe_spark.run import executors

from tests.support.resources import a_buffered, a_consolidation, a_dataset

RUN = a_consolidation(a_buffered("A"))
SETTINGS = Settings(spark_image="lethe-spark:1", catalogs_secret="cats")
ALONE = size(0, RunTemplate())
WIDE = size(0, RunTemplate.model_validate({"executors": {"min": 2, "cpu": "500m", "memory": "2Gi", "scratch": "5Gi"}}))


def a_job(chosen: Size = ALONE, template: Any = None) -> dict[str, Any]:
    return run_object(Launch(RUN, 0, 3, "a test"), chosen, RunTemplate(pod_template=template or {}), SETTINGS)


def container(document: dict[str, Any]) -> dict[str, Any]:
    (found,) = document["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_names_follow_from_the_run_and_fit_kubernetes() -> None:
    long = a_dataset("x" * 63)
    run = run_specs.consolidation(long, [waiting(a_buffered("A"))])

    assert f"flights-consolidation-{RUN.run_id[:8]}-1" == RUN.attempt_name
    assert names.shared("flights") == "flights-runs"
    for name in (run.attempt_name, names.shared("x" * 63)):
        assert len(name) <= 63
    assert len(names.executor_prefix(run)) <= 47
    assert run.attempt_name != run.model_copy(update={"attempt": 2}).attempt_name


def test_a_job_is_one_attempt_that_kubernetes_never_repeats() -> None:
    spec = a_job()["spec"]

    assert (
        spec["backoffLimit"],
        spec["podReplacementPolicy"],
        spec["template"]["spec"]["restartPolicy"],
    ) == (0, "Failed", "Never")
    assert Settings().max_run_seconds == spec["activeDeadlineSeconds"]
    assert "ttlSecondsAfterFinished" not in spec


def test_a_run_hears_how_long_erasure_records_are_kept() -> None:
    kept = replace(SETTINGS, record_retention=Retention(LockMode.COMPLIANCE, 30))

    def heard(settings: Settings) -> list[str]:
        env = container(run_object(Launch(RUN, 0, 3, "a test"), ALONE, RunTemplate(), settings))["env"]
        return [e["value"] for e in env if e["name"] == RETENTION_VARIABLE]

    assert (heard(SETTINGS), heard(kept)) == ([], ["COMPLIANCE:30"])


def test_a_job_is_owned_by_its_dataset_and_has_its_labels() -> None:
    metadata = a_job()["metadata"]

    (owner,) = metadata["ownerReferences"]
    assert (owner["kind"], owner["name"], owner["uid"]) == ("Dataset", "flights", "uid-flights")
    assert False is owner["blockOwnerDeletion"]
    assert {
        "app.kubernetes.io/name": "lethe",
        "app.kubernetes.io/managed-by": "lethe",
        "app.kubernetes.io/component": "run",
        "lethe.dev/dataset": "flights",
        "lethe.dev/dataset-uid": "uid-flights",
        "lethe.dev/kind": "Consolidation",
        "lethe.dev/run-id": RUN.run_id,
        "lethe.dev/attempt": "1",
    } == metadata["labels"]
    assert metadata["annotations"]["lethe.dev/dataset-generation"] == "3"


@pytest.mark.parametrize("chosen", [ALONE, WIDE], ids=["alone", "with executors"])
def test_every_pod_meets_pod_security_restricted_with_a_read_only_root(chosen: Size) -> None:
    for template in (a_job(chosen)["spec"]["template"], pod.executor(RUN, WIDE, RunTemplate(), SETTINGS)):
        spec = template["spec"]
        security = spec["securityContext"]
        assert (
            security["runAsNonRoot"],
            security["runAsUser"],
            security["seccompProfile"]["type"],
        ) == (True, 185, "RuntimeDefault")
        (found,) = spec["containers"]
        assert found["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "/tmp" in {m["mountPath"] for m in found["volumeMounts"]}


def test_the_environment_of_the_driver_names_its_files() -> None:
    found = container(a_job())
    env = {e["name"]: e.get("value") or e["valueFrom"]["fieldRef"]["fieldPath"] for e in found["env"]}

    assert {
        "POD_NAME": "metadata.name",
        "POD_IP": "status.podIP",
        "POD_NAMESPACE": "metadata.namespace",
        "LETHE_RUN_FILE": "/etc/lethe/run/run.json",
        "LETHE_STATUS_CONFIGMAP": "flights-runs",
        "LETHE_STATUS_PREFIX": RUN.run_id[:12],
        "LETHE_DRIVER_MEMORY": "1024m",
        "PYICEBERG_HOME": "/etc/lethe/catalogs",
        "SPARK_LOCAL_DIRS": "/scratch",
    } == env
    assert found["args"][0] == "driver"
    assert found["terminationMessagePolicy"] == "File"
    assert str(2 * GIB) == found["resources"]["limits"]["memory"] == found["resources"]["requests"]["memory"]


def test_the_driver_s_volumes_are_its_one_run_and_the_catalogs() -> None:
    volumes = {v["name"]: v for v in a_job()["spec"]["template"]["spec"]["volumes"]}

    assert [{"key": f"{RUN.run_id[:12]}.run.json", "path": "run.json"}] == volumes["run"]["configMap"]["items"]
    assert volumes["catalogs"]["secret"]["secretName"] == "cats"
    assert {"run", "catalogs", "tmp", "scratch"} == set(volumes)


def test_a_driver_alone_has_no_kubernetes_settings() -> None:
    confs = pod.confs(RUN, ALONE, SETTINGS)

    assert confs["spark.master"] == "local[2]"
    assert [k for k in confs if "kubernetes" in k or "executor" in k] == []


def test_with_executors_the_driver_needs_rights_on_pods_only() -> None:
    confs = pod.confs(RUN, WIDE, SETTINGS)

    assert {
        "spark.master": "k8s://https://kubernetes.default.svc:443",
        "spark.kubernetes.namespace": "ns",
        "spark.driver.host": "$(POD_IP)",
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        "spark.kubernetes.executor.podTemplateFile": "/etc/lethe/run/executor.yaml",
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "2",
        "spark.dynamicAllocation.initialExecutors": "2",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.executor.cores": "1",
        "spark.kubernetes.executor.request.cores": "500m",
        "spark.executor.memory": "1462m",
        "spark.executor.memoryOverhead": "585m",
        "spark.executor.maxNumFailures": "10",
        "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1.options.sizeLimit": str(5 * GIB),
    }.items() <= confs.items()
    items = next(v for v in a_job(WIDE)["spec"]["template"]["spec"]["volumes"] if v["name"] == "run")["configMap"][
        "items"
    ]
    assert {"run.json", "executor.yaml"} == {i["path"] for i in items}


def test_an_executor_has_no_token_and_the_labels_of_its_run() -> None:
    template = pod.executor(RUN, WIDE, RunTemplate(), SETTINGS)

    assert False is template["spec"]["automountServiceAccountToken"]
    assert template["spec"]["serviceAccountName"] == "flights-executors"
    assert RUN.run_id == template["metadata"]["labels"]["lethe.dev/run-id"]
    assert template == json.loads(json.dumps(template))


def test_a_pod_template_adds_and_never_takes_away() -> None:
    template = {
        "metadata": {"labels": {"team": "air", "lethe.dev/run-id": "mine"}, "annotations": {"note": "x"}},
        "spec": {
            "nodeSelector": {"pool": "batch"},
            "priorityClassName": "low",
            "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
            "containers": [
                {
                    "name": "spark",
                    "env": [{"name": "A", "value": "b"}],
                    "volumeMounts": [{"name": "ca", "mountPath": "/ca"}],
                }
            ],
        },
    }

    for made in (
        a_job(ALONE, template)["spec"]["template"],
        pod.executor(RUN, WIDE, RunTemplate(podTemplate=template), SETTINGS),
    ):
        spec = made["spec"]
        assert ("air", RUN.run_id) == (
            made["metadata"]["labels"]["team"],
            made["metadata"]["labels"]["lethe.dev/run-id"],
        )
        assert made["metadata"]["annotations"]["note"] == "x"
        assert (spec["nodeSelector"], spec["priorityClassName"]) == ({"pool": "batch"}, "low")
        assert {"name": "A", "value": "b"} in spec["containers"][0]["env"]
        assert {"name": "ca", "mountPath": "/ca"} in spec["containers"][0]["volumeMounts"]
        assert "ca" in {v["name"] for v in spec["volumes"]}


DATASET = DatasetRef(namespace="ns", name="flights", uid="u")
ITS_CONFIG_MAP = {
    "apiGroups": [""],
    "resources": ["configmaps"],
    "resourceNames": ["flights-runs"],
    "verbs": ["get", "patch"],
}


def bindings(objects: tuple[dict[str, Any], ...]) -> dict[str, list[str]]:
    """Account -> the Roles that it has."""
    found: dict[str, list[str]] = {}
    for one in objects:
        if one["kind"] == "RoleBinding":
            (subject,) = one["subjects"]
            found.setdefault(subject["name"], []).append(one["roleRef"]["name"])
    return found


def test_a_driver_without_executors_may_touch_its_own_config_map_and_no_pod() -> None:
    objects = dataset_objects(DATASET, (), with_executors=False)

    assert [o["kind"] for o in objects] == ["ConfigMap", "ServiceAccount", "Role", "RoleBinding"]
    assert {"flights-runs"} == {o["metadata"]["name"] for o in objects}
    assert {"u"} == {o["metadata"]["ownerReferences"][0]["uid"] for o in objects}
    assert objects[2]["rules"] == [ITS_CONFIG_MAP]
    assert a_job(ALONE)["spec"]["template"]["spec"]["serviceAccountName"] == "flights-runs"


def test_a_driver_with_executors_has_its_own_account() -> None:
    objects = dataset_objects(DATASET, (), with_executors=True)

    assert bindings(objects) == {
        "flights-runs": ["flights-runs"],
        "flights-scaled-runs": ["flights-runs", "lethe-scaled-runs"],
    }
    assert [o["rules"] for o in objects if o["kind"] == "Role"] == [[ITS_CONFIG_MAP]]
    assert a_job(WIDE)["spec"]["template"]["spec"]["serviceAccountName"] == "flights-scaled-runs"


def test_the_committer_may_report_and_nothing_else() -> None:
    objects = dataset_objects(DATASET, ("lethe-committer",), with_executors=False)

    assert bindings(objects)["lethe-committer"] == ["flights-reports"]
    assert [o["rules"] for o in objects if o["kind"] == "Role"] == [[ITS_CONFIG_MAP]] * 2


@pytest.mark.parametrize("chosen", [ALONE, WIDE], ids=["alone", "with executors"])
def test_only_a_pod_that_asks_for_a_token_gets_one(chosen: Size) -> None:
    accounts = [o for o in dataset_objects(DATASET, (), True) if o["kind"] == "ServiceAccount"]

    assert [a["automountServiceAccountToken"] for a in accounts] == [False] * 3
    assert True is a_job(chosen)["spec"]["template"]["spec"]["automountServiceAccountToken"]
    assert False is pod.executor(RUN, WIDE, RunTemplate(), SETTINGS)["spec"]["automountServiceAccountToken"]


def test_no_secret_is_part_of_any_object() -> None:
    """They come from mounted Secrets; the confs hold sizes, addresses and paths."""
    named = {k: v for k, v in pod.confs(RUN, WIDE, SETTINGS).items() if "catalog" in k or "secret" in k}

    assert named == {"spark.authenticate.secret.file": "/etc/lethe/rpc/secret"}


def test_driver_and_executors_know_each_other_by_a_secret_of_the_attempt() -> None:
    """Spark refuses to start a driver that has not named its own file."""
    confs = pod.confs(RUN, WIDE, SETTINGS)
    assert {
        "spark.authenticate": "true",
        "spark.network.crypto.enabled": "true",
        "spark.network.crypto.cipher": "AES/GCM/NoPadding",
        "spark.network.crypto.saslFallback": "false",
        "spark.io.encryption.enabled": "true",
    }.items() <= confs.items()
    name = names.rpc_secret(RUN)
    assert name != names.rpc_secret(RUN.model_copy(update={"attempt": 2}))

    env = {e["name"]: e for e in container(a_job(WIDE))["env"]}
    assert env["LETHE_RPC_SECRET"]["value"] == name
    assert env["POD_UID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.uid"
    assert "LETHE_RPC_SECRET" not in {e["name"] for e in container(a_job(ALONE))["env"]}
    template = pod.executor(RUN, WIDE, RunTemplate(), SETTINGS)["spec"]
    (volume,) = [v for v in template["volumes"] if v["name"] == "rpc"]
    assert volume["secret"] == {
        "secretName": name,
        "defaultMode": 0o440,
        "items": [{"key": executors.KEY, "path": "secret"}],
    }
    assert {"name": "rpc", "mountPath": "/etc/lethe/rpc", "readOnly": True} in template["containers"][0]["volumeMounts"]


def test_every_pod_has_limits() -> None:
    """Memory is limited to what is asked for, CPUs to a multiple of it, and the disk to what its folders may hold."""
    driver, confs = container(a_job(WIDE))["resources"], pod.confs(RUN, WIDE, SETTINGS)
    (executor,) = pod.executor(RUN, WIDE, RunTemplate(), SETTINGS)["spec"]["containers"]

    assert driver["limits"] == {"cpu": "4000m", "memory": str(2 * GIB), "ephemeral-storage": str(65 * GIB + 256 * MIB)}
    assert driver["requests"] == {"cpu": "1000m", "memory": str(2 * GIB), "ephemeral-storage": str(256 * MIB)}
    assert confs["spark.kubernetes.executor.limit.cores"] == "2000m"
    assert executor["resources"] == {
        "requests": {"ephemeral-storage": str(256 * MIB)},
        "limits": {"ephemeral-storage": str(6 * GIB + 256 * MIB)},
    }
    volumes = (
        a_job(WIDE)["spec"]["template"]["spec"]["volumes"]
        + pod.executor(RUN, WIDE, RunTemplate(), SETTINGS)["spec"]["volumes"]
    )
    assert all(v["emptyDir"].get("sizeLimit") for v in volumes if "emptyDir" in v)


def test_the_network_knows_a_pod_by_its_role_and_no_template_can_lie_about_it() -> None:
    lie = {"metadata": {"labels": {"lethe.dev/role": "executor"}}}

    roles = [
        made["metadata"]["labels"]["lethe.dev/role"]
        for made in (
            a_job(ALONE, lie)["spec"]["template"],
            a_job(WIDE, lie)["spec"]["template"],
            pod.executor(RUN, WIDE, RunTemplate(podTemplate=lie), SETTINGS),
        )
    ]
    assert roles == ["driver", "scaled-driver", "executor"]


def test_pods_of_runs_have_user_namespaces_if_the_chart_says_so() -> None:
    apart = Settings(user_namespaces=True)
    driver = run_object(Launch(RUN, 0, 3, "a test"), WIDE, RunTemplate(), apart)["spec"]["template"]["spec"]
    executor = pod.executor(RUN, WIDE, RunTemplate(), apart)["spec"]

    assert (driver["hostUsers"], executor["hostUsers"]) == (False, False)
    assert "hostUsers" not in pod.executor(RUN, WIDE, RunTemplate(), SETTINGS)["spec"]


def test_the_limit_of_cpus_can_be_left_out() -> None:
    free = Settings(run_limits=RunLimits(cpu_factor=0))

    assert "spark.kubernetes.executor.limit.cores" not in pod.confs(RUN, WIDE, free)
    made = run_object(Launch(RUN, 0, 3, "a test"), WIDE, RunTemplate(), free)
    assert container(made)["resources"]["limits"].keys() == {"memory", "ephemeral-storage"}
