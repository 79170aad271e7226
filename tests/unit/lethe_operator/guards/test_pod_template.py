"""What a Dataset's author may set on pods, and what not."""

from typing import Any

import pytest
from lethe_operator.guards.permissions import violations
from lethe_operator.settings import PodTemplateAllowed

DEFAULT = PodTemplateAllowed()
# An administrator who names what these Datasets need.
GENEROUS = PodTemplateAllowed(
    env=("APP_*", "AWS_REGION"),
    labels=("team", "kueue.x-k8s.io/queue-name"),
    annotations=("example.org/*",),
    priority_classes=("batch-*",),
    schedulers=("volcano",),
    tolerations=("batch",),
    config_maps=("ca",),
    volume_claims=("models",),
    mount_paths=("/mnt", "/etc/ca"),
)
EVERYTHING = PodTemplateAllowed(
    **{field: ("*",) for field in PodTemplateAllowed.model_fields if field != "mount_paths"}, mount_paths=("/mnt",)
)


def a_spec(**fields: Any) -> dict[str, Any]:
    return {"spec": fields}


def a_container(**fields: Any) -> dict[str, Any]:
    return a_spec(containers=[{"name": "spark", **fields}])


def a_variable(name: str, **source: Any) -> dict[str, Any]:
    return a_container(env=[{"name": name, **(source or {"value": "x"})}])


def a_mount(path: str, volume: str = "v") -> dict[str, Any]:
    return a_container(volumeMounts=[{"name": volume, "mountPath": path}])


def a_volume(name: str = "v", **source: Any) -> dict[str, Any]:
    return a_spec(volumes=[{"name": name, **source}])


def an_affinity(kind: str, **term: Any) -> dict[str, Any]:
    chosen = {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": "kubernetes.io/hostname", **term}]}
    return a_spec(affinity={kind: chosen})


def found(template: dict[str, Any], allowed: PodTemplateAllowed = DEFAULT) -> tuple[str, ...]:
    return violations(template, allowed, ["registry"])


def test_what_an_administrator_lists_is_allowed() -> None:
    template = {
        "metadata": {
            "labels": {"team": "air", "kueue.x-k8s.io/queue-name": "q"},
            "annotations": {"example.org/note": "b"},
        },
        "spec": {
            "nodeSelector": {"pool": "batch"},
            "tolerations": [{"key": "batch", "operator": "Exists"}],
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": []}},
                "podAntiAffinity": {
                    "preferredDuringSchedulingIgnoredDuringExecution": [
                        {"weight": 1, "podAffinityTerm": {"topologyKey": "zone", "labelSelector": {}}}
                    ]
                },
            },
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "priorityClassName": "batch-low",
            "schedulerName": "volcano",
            "imagePullSecrets": [{"name": "registry"}],
            "volumes": [
                {"name": "ca", "configMap": {"name": "ca"}},
                {"name": "key", "secret": {"secretName": "registry"}},
                {"name": "models", "persistentVolumeClaim": {"claimName": "models"}},
                {"name": "room", "emptyDir": {"sizeLimit": "1Gi"}},
            ],
            "containers": [
                {
                    "name": "spark",
                    "env": [
                        {"name": "AWS_REGION", "value": "x"},
                        {"name": "APP_MODE", "valueFrom": {"configMapKeyRef": {"name": "ca", "key": "k"}}},
                        {"name": "APP_KEY", "valueFrom": {"secretKeyRef": {"name": "registry", "key": "k"}}},
                    ],
                    "volumeMounts": [
                        {"name": "ca", "mountPath": "/etc/ca"},
                        {"name": "models", "mountPath": "/mnt/models/", "readOnly": True, "subPath": "a"},
                    ],
                }
            ],
        },
    }

    assert found(template, GENEROUS) == ()


def test_without_a_word_of_the_administrator_pods_can_be_placed_and_hear_of_variables_that_nothing_else_reads() -> None:
    template = {
        "spec": {
            "nodeSelector": {"pool": "batch"},
            "affinity": {"nodeAffinity": {}},
            "volumes": [{"name": "room", "emptyDir": {}}],
            "containers": [
                {
                    "name": "spark",
                    "env": [{"name": "APP_MODE", "value": "x"}],
                    "volumeMounts": [{"name": "room", "mountPath": "/mnt/room"}],
                }
            ],
        }
    }

    assert found(template) == ()


# Each family of variables by which a process is made to run other code, to talk to somebody else, or to read other settings.
DANGEROUS = {
    "shell": ["BASH_ENV", "ENV", "BASH_FUNC_exec%%", "SHELLOPTS", "PS4", "PATH", "IFS", "HOME", "TMPDIR"],
    "loader": ["LD_PRELOAD", "LD_LIBRARY_PATH", "LD_AUDIT", "GCONV_PATH", "GLIBC_TUNABLES", "OPENSSL_CONF"],
    "JVM": ["JDK_JAVA_OPTIONS", "_JAVA_OPTIONS", "JAVA_TOOL_OPTIONS", "JAVA_HOME", "CLASSPATH"],
    "Python": ["PYTHONPATH", "PYTHONSTARTUP", "PYTHONHOME", "PYTHONINSPECT"],
    "Spark": ["SPARK_SUBMIT_OPTS", "SPARK_CONF_DIR", "SPARK_JAVA_OPT_0", "_SPARK_AUTH_SECRET", "PYSPARK_SUBMIT_ARGS"],
    "Hadoop": ["HADOOP_CONF_DIR", "HADOOP_OPTS"],
    "catalog": ["PYICEBERG_HOME", "PYICEBERG_CATALOG__MAIN__URI"],
    "proxy": ["HTTP_PROXY", "HTTPS_PROXY", "https_proxy", "ALL_PROXY", "NO_PROXY", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE"],
    "cloud": ["AWS_ENDPOINT_URL", "AWS_ENDPOINT_URL_S3", "AWS_REGION", "AWS_PROFILE", "AWS_CONFIG_FILE", "AWS_ROLE_ARN",
              "AWS_CONTAINER_CREDENTIALS_FULL_URI", "AWS_ACCESS_KEY_ID", "GOOGLE_APPLICATION_CREDENTIALS",
              "AZURE_AUTHORITY_HOST"],
    "cluster": ["KUBERNETES_SERVICE_HOST", "KUBERNETES_SERVICE_PORT", "POD_NAMESPACE", "POD_IP", "POD_UID"],
    "Lethe": ["LETHE_RUN_FILE", "LETHE_STATUS_CONFIGMAP", "LETHE_CRASH_AT", "LETHE_SERVICE_ACCOUNT"],
    "other": ["SSLKEYLOGFILE", "TZ", "MALLOC_CONF", "app_mode", "XAPP_MODE", ""],
}  # fmt: skip
OWN = ["Python", "Spark", "Lethe", "cluster", "catalog"]


@pytest.mark.parametrize("name", [n for names in DANGEROUS.values() for n in names])
def test_a_variable_that_no_list_names_is_refused(name: str) -> None:
    (said,) = found(a_variable(name))

    assert said.startswith("spec.containers[0].env[0].name ")
    assert repr(name) in said


@pytest.mark.parametrize("name", [n for family in OWN for n in DANGEROUS[family]])
def test_no_list_gives_away_a_variable_that_lethe_spark_or_kubernetes_set(name: str) -> None:
    assert found(a_variable(name), EVERYTHING) == (
        f"spec.containers[0].env[0].name {name!r} is set by Lethe, Spark or Kubernetes",
    )


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize(
    "key",
    [
        "lethe.dev/dataset",
        "member.lethe.dev/0f8fad5b",
        "app.kubernetes.io/component",
        "batch.kubernetes.io/job-name",
        "job-name",
        "spark-role",
        "spark-app-selector",
        "sparkoperator.k8s.io/app-name",
        "container.apparmor.security.beta.kubernetes.io/spark",
        "seccomp.security.alpha.kubernetes.io/pod",
    ],
)
def test_no_list_gives_away_a_key_that_pods_are_found_or_confined_by(field: str, key: str) -> None:
    (said,) = found({"metadata": {field: {key: "unconfined"}}}, EVERYTHING)

    assert said == f"metadata.{field}[{key!r}] is reserved for Lethe, Spark or Kubernetes"


@pytest.mark.parametrize("field", ["labels", "annotations"])
@pytest.mark.parametrize(
    "key",
    ["team", "sidecar.istio.io/inject", "azure.workload.identity/use", "aadpodidbinding", "kueue.x-k8s.io/queue-name",
     "k8s.v1.cni.cncf.io/networks", "eks.amazonaws.com/role-arn", "cluster-autoscaler.kubernetes.io/safe-to-evict", ""],
)  # fmt: skip
def test_a_label_or_annotation_that_no_list_names_is_refused(field: str, key: str) -> None:
    (said,) = found({"metadata": {field: {key: "x"}}})

    assert said.startswith(f"metadata.{field}[{key!r}] names the {field[:-1]} {key!r}")
    assert f"podTemplate.allowed.{field} (empty)" in said


SOURCES = [
    "hostPath", "projected", "downwardAPI", "nfs", "csi", "image", "ephemeral", "iscsi", "gitRepo", "glusterfs", "cephfs", "fc",
    "flexVolume", "azureDisk", "azureFile", "awsElasticBlockStore", "gcePersistentDisk", "portworxVolume", "rbd", "quobyte",
    "scaleIO", "storageos", "vsphereVolume", "cinder", "flocker", "photonPersistentDisk",
]  # fmt: skip


@pytest.mark.parametrize("source", SOURCES)
def test_every_other_kind_of_volume_is_refused(source: str) -> None:
    assert found(a_volume(**{source: {}}), EVERYTHING) == (f"spec.volumes[0].{source} may not be set",)


CONTAINER_FIELDS = [
    "image", "imagePullPolicy", "command", "args", "envFrom", "lifecycle", "livenessProbe", "ports", "resources",
    "restartPolicy", "securityContext", "stdin", "terminationMessagePath", "volumeDevices", "workingDir",
]  # fmt: skip
SPEC_FIELDS = [
    "serviceAccountName", "serviceAccount", "automountServiceAccountToken", "hostNetwork", "hostPID", "hostIPC", "hostUsers",
    "hostAliases", "hostname", "subdomain", "dnsConfig", "dnsPolicy", "securityContext", "initContainers", "ephemeralContainers",
    "shareProcessNamespace", "nodeName", "runtimeClassName", "restartPolicy", "activeDeadlineSeconds", "preemptionPolicy",
    "priority", "overhead", "resourceClaims", "schedulingGates", "setHostnameAsFQDN", "os", "enableServiceLinks",
]  # fmt: skip


@pytest.mark.parametrize("field", CONTAINER_FIELDS)
def test_no_image_command_or_security_setting_of_the_container_can_be_named(field: str) -> None:
    assert found(a_container(**{field: {}}), EVERYTHING) == (f"spec.containers[0].{field} may not be set",)


@pytest.mark.parametrize("field", SPEC_FIELDS)
def test_no_account_namespace_or_security_setting_of_the_pod_can_be_named(field: str) -> None:
    assert found(a_spec(**{field: {}}), EVERYTHING) == (f"spec.{field} may not be set",)


@pytest.mark.parametrize(
    "path",
    ["/", "/mnt/..", "/mnt/../etc", "/mnt/./x", "mnt/x", "", "/mntx", "/etc", "/etc/ld.so.preload", "/etc/lethe/run", "/tmp",
     "/scratch", "/opt/lethe/app", "/usr/lib", "/var/run/secrets/kubernetes.io/serviceaccount", "/proc", "/lib64", "//etc"],
)  # fmt: skip
def test_a_mount_stays_below_the_paths_that_are_for_it(path: str) -> None:
    (said,) = found(a_mount(path), EVERYTHING)

    assert said == (
        f"spec.containers[0].volumeMounts[0].mountPath {path!r} is not below a path of the list "
        "podTemplate.allowed.mountPaths (/mnt)"
    )


@pytest.mark.parametrize(
    ("template", "path"),
    [
        (a_volume(secret={"secretName": "other"}), "spec.volumes[0].secret.secretName"),
        (a_volume(secret={"secretName": "lethe-catalogs"}), "spec.volumes[0].secret.secretName"),
        (a_volume(configMap={"name": "other"}), "spec.volumes[0].configMap.name"),
        (a_volume(persistentVolumeClaim={"claimName": "other"}), "spec.volumes[0].persistentVolumeClaim.claimName"),
        (a_volume("run", emptyDir={}), "spec.volumes[0].name"),
        (a_volume("erase", emptyDir={}), "spec.volumes[0].name"),
        (a_volume("rpc", emptyDir={}), "spec.volumes[0].name"),
        (a_volume("digest-key", emptyDir={}), "spec.volumes[0].name"),
        (a_mount("/mnt/mine", volume="catalogs"), "spec.containers[0].volumeMounts[0].name"),
        (a_spec(imagePullSecrets=[{"name": "other"}]), "spec.imagePullSecrets[0].name"),
        (a_spec(containers=[{"name": "sidecar"}]), "spec.containers[0].name"),
        (
            a_variable("APP_K", valueFrom={"secretKeyRef": {"name": "other", "key": "k"}}),
            "spec.containers[0].env[0].valueFrom.secretKeyRef.name",
        ),
        (
            a_variable("APP_K", valueFrom={"configMapKeyRef": {"name": "other", "key": "k"}}),
            "spec.containers[0].env[0].valueFrom.configMapKeyRef.name",
        ),
        (
            a_variable("APP_K", valueFrom={"fieldRef": {"fieldPath": "x"}}),
            "spec.containers[0].env[0].valueFrom.fieldRef",
        ),
        (
            a_variable("APP_K", valueFrom={"fileKeyRef": {"path": "x"}}),
            "spec.containers[0].env[0].valueFrom.fileKeyRef",
        ),
        (a_spec(priorityClassName="system-node-critical"), "spec.priorityClassName"),
        (a_spec(priorityClassName="system-cluster-critical"), "spec.priorityClassName"),
        (a_spec(schedulerName="mine"), "spec.schedulerName"),
        (a_spec(tolerations=[{"key": "node-role.kubernetes.io/control-plane"}]), "spec.tolerations[0].key"),
        (a_spec(tolerations=[{"operator": "Exists"}]), "spec.tolerations[0].key"),
        (
            an_affinity("podAntiAffinity", namespaceSelector={}),
            "spec.affinity.podAntiAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaceSelector",
        ),
        (
            an_affinity("podAffinity", namespaces=["kube-system"]),
            "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].namespaces",
        ),
        (a_spec(affinity={"other": {}}), "spec.affinity.other"),
        ({"metadata": {"ownerReferences": []}}, "metadata.ownerReferences"),
        ({"metadata": {"finalizers": []}}, "metadata.finalizers"),
        ({"metadata": {"namespace": "kube-system"}}, "metadata.namespace"),
        ({"status": {}}, "status"),
    ],
)
def test_what_no_list_names_is_refused_by_path(template: dict[str, Any], path: str) -> None:
    (said,) = found(template, GENEROUS)

    assert said.startswith(f"{path} ")
