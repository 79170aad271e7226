"""What a Dataset's author may set on pods, and what not."""

from typing import Any

import pytest
from lethe_operator.decide.pod_template import violations


def a_spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def a_container(**fields: Any) -> dict[str, Any]:
    return a_spec(containers=[{"name": "spark", **fields}])


def test_what_pods_commonly_need_is_allowed() -> None:
    template = {
        "metadata": {"labels": {"team": "air"}, "annotations": {"a": "b"}},
        "spec": {
            "nodeSelector": {"pool": "batch"},
            "tolerations": [{"key": "batch", "operator": "Exists"}],
            "affinity": {"nodeAffinity": {}},
            "priorityClassName": "low",
            "schedulerName": "volcano",
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [
                {"name": "ca", "configMap": {"name": "ca"}},
                {"name": "key", "secret": {"secretName": "registry"}},
            ],
            "containers": [
                {
                    "name": "spark",
                    "env": [{"name": "AWS_REGION", "value": "x"}],
                    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
                }
            ],
        },
    }

    assert violations(template, ["registry"]) == ()


@pytest.mark.parametrize(
    ("template", "path"),
    [
        (a_spec(serviceAccountName="admin"), "spec.serviceAccountName"),
        (a_spec(hostNetwork=True), "spec.hostNetwork"),
        (a_spec(securityContext={}), "spec.securityContext"),
        (a_spec(initContainers=[]), "spec.initContainers"),
        (a_spec(automountServiceAccountToken=True), "spec.automountServiceAccountToken"),
        (a_spec(volumes=[{"name": "v", "hostPath": {"path": "/"}}]), "spec.volumes[0].hostPath"),
        (a_spec(volumes=[{"name": "v", "projected": {}}]), "spec.volumes[0].projected"),
        (a_spec(volumes=[{"name": "v", "secret": {"secretName": "other"}}]), "spec.volumes[0].secret.secretName"),
        (a_spec(volumes=[{"name": "run", "emptyDir": {}}]), "spec.volumes[0].name"),
        (a_spec(imagePullSecrets=[{"name": "other"}]), "spec.imagePullSecrets[0].name"),
        (a_spec(containers=[{"name": "sidecar"}]), "spec.containers[0].name"),
        (a_container(image="evil"), "spec.containers[0].image"),
        (a_container(command=["sh"]), "spec.containers[0].command"),
        (a_container(securityContext={"privileged": True}), "spec.containers[0].securityContext"),
        (a_container(env=[{"name": "LETHE_RUN_FILE", "value": "x"}]), "spec.containers[0].env[0].name"),
        (a_container(env=[{"name": "PYTHONPATH", "value": "x"}]), "spec.containers[0].env[0].name"),
        (
            a_container(env=[{"name": "K", "valueFrom": {"secretKeyRef": {"name": "other", "key": "k"}}}]),
            "spec.containers[0].env[0].valueFrom.secretKeyRef.name",
        ),
        (
            a_container(env=[{"name": "K", "valueFrom": {"fieldRef": {"fieldPath": "x"}}}]),
            "spec.containers[0].env[0].valueFrom.fieldRef",
        ),
        (
            a_container(volumeMounts=[{"name": "v", "mountPath": "/etc/lethe/run"}]),
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        (a_container(volumeMounts=[{"name": "v", "mountPath": "/"}]), "spec.containers[0].volumeMounts[0].mountPath"),
        (
            a_container(volumeMounts=[{"name": "v", "mountPath": "/x/../tmp"}]),
            "spec.containers[0].volumeMounts[0].mountPath",
        ),
        (
            a_container(volumeMounts=[{"name": "catalogs", "mountPath": "/mine"}]),
            "spec.containers[0].volumeMounts[0].name",
        ),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
        ({"status": {}}, "status"),
    ],
)
def test_what_would_leave_the_sandbox_is_refused_by_path(template: dict[str, Any], path: str) -> None:
    found = violations(template, ["registry"])

    assert len(found) == 1
    assert found[0].startswith(f"{path} ")
