"""The pods of a run: the driver's, and the template of its executors. Pure.

Both comply with the Pod Security Standard `restricted` and have a read-only root file system, whatever a Dataset's pod template
adds.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, assert_never

from lethe.contract.run import RunKind, RunSpec

from lethe_operator.build import names, spark_conf
from lethe_operator.build.sizing import Pod, Size
from lethe_operator.resources.common import (
    ANNOTATION_DATASET,
    CONTAINER,
    DIGEST_KEY_PATH,
    ERASE_PATH,
    EXECUTOR_KEY,
    LABEL_ROLE,
    POD_FIELDS,
    RUN_KEY,
)
from lethe_operator.resources.dataset import GIB, MIB
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.settings import RunLimits, Settings, catalogs_secret_of

UID = 185
CATALOGS_PATH = "/etc/lethe/catalogs"
RUN_PATH = "/etc/lethe/run"
TMP_BYTES = GIB
LOG_BYTES = 256 * MIB
EPHEMERAL = "ephemeral-storage"
# Time for a driver that must stop to cancel its jobs and report.
GRACE_SECONDS = 30


@dataclass(frozen=True)
class Assignment:
    """What a driver carries out, and how it reads its runs and reports."""

    namespace: str
    account: str  # name of its ServiceAccount
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    confs: Mapping[str, str]  # Spark settings
    env: Sequence[Mapping[str, Any]]
    runs: Mapping[str, Any]  # the volume with the run documents
    secrets: Sequence[SecretFile] = ()  # values of Erases
    digests: bool = False  # it writes keyed digests of erased values, so it needs the key
    options: Sequence[str] = ()  # with which it decides about its executors


def one_run(run: RunSpec, size: Size, settings: Settings, secrets: Sequence[SecretFile] = ()) -> Assignment:
    """One run of one Dataset: with a ServiceAccount of the Dataset, and this run's keys of its ConfigMap."""
    prefix, config_map = names.key_prefix(run.run_id), names.shared(run.dataset.name)
    items = [{"key": f"{prefix}{RUN_KEY}", "path": "run.json"}]
    spark: list[dict[str, Any]] = []
    if size.executors:
        items.append({"key": f"{prefix}{EXECUTOR_KEY}", "path": "executor.yaml"})
        spark = [{"name": "LETHE_RPC_SECRET", "value": names.rpc_secret(run)}, _field("POD_UID", "metadata.uid")]
    return Assignment(
        namespace=run.dataset.namespace,
        account=names.scaled(run.dataset.name) if size.executors else config_map,
        labels=names.run_labels(run),
        annotations={ANNOTATION_DATASET: run.dataset.name},
        confs=spark_conf.confs(run, size, settings),
        env=[
            {"name": "LETHE_RUN_FILE", "value": f"{RUN_PATH}/run.json"},
            {"name": "LETHE_STATUS_CONFIGMAP", "value": config_map},
            {"name": "LETHE_STATUS_PREFIX", "value": prefix},
            *spark,
        ],
        runs={"configMap": {"name": config_map, "items": items}},
        secrets=secrets,
        digests=bool(secrets) or _writes_records(run.kind),
        options=spark_conf.scaling(run, size),
    )


def _writes_records(kind: RunKind) -> bool:
    """Whether a run may verify erasures, whose records hold keyed digests."""
    match kind:
        case RunKind.VACUUM | RunKind.ERASURE_CHECK:
            return True
        case RunKind.CONSOLIDATION | RunKind.REANCHORING | RunKind.RESTATEMENT:
            return False
        case _:
            assert_never(kind)


def driver(assignment: Assignment, size: Size, template: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The pod template of a Job.

    Args:
        template: The allowed additions of chart and Dataset, merged.
    """
    scratch = size.driver.scratch or settings.run_limits.scratch
    container: dict[str, Any] = {
        "name": CONTAINER,
        "image": settings.spark_image,
        "imagePullPolicy": settings.image_pull_policy,
        "args": spark_conf.arguments(assignment.confs, assignment.options),
        "env": [
            _field("POD_NAME", "metadata.name"),
            _field("POD_IP", "status.podIP"),
            _field("POD_NAMESPACE", "metadata.namespace"),
            *assignment.env,
            {"name": "LETHE_DRIVER_MEMORY", "value": f"{size.driver.heap // MIB}m"},
            *({"name": name, "value": value} for name, value in size.driver.decoder_variables.items()),
            {"name": "PYICEBERG_HOME", "value": CATALOGS_PATH},
            {"name": "SPARK_LOCAL_DIRS", "value": spark_conf.SCRATCH},
            *_retention(settings),
            *([{"name": "LETHE_LOG_FORMAT", "value": settings.log_format}] if settings.log_format else []),
            *({"name": name, "value": value} for name, value in settings.tracing),
        ],
        "resources": _resources(size.driver, settings.run_limits),
        "securityContext": _container_security(),
        # The last lines of a log could contain what a status must not show, so only the run's own message is read.
        "terminationMessagePolicy": "File",
        "volumeMounts": [
            {"name": "run", "mountPath": RUN_PATH, "readOnly": True},
            {"name": "catalogs", "mountPath": CATALOGS_PATH, "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "scratch", "mountPath": spark_conf.SCRATCH},
        ],
    }
    volumes: list[dict[str, Any]] = [
        {"name": "run", **assignment.runs},
        {
            "name": "catalogs",
            "secret": {"secretName": catalogs_secret_of(settings, assignment.namespace), "defaultMode": 0o440},
        },
        {"name": "tmp", "emptyDir": {"sizeLimit": str(TMP_BYTES)}},
        {"name": "scratch", "emptyDir": {"sizeLimit": str(scratch)}},
    ]
    if assignment.secrets:
        container["volumeMounts"].append({"name": "erase", "mountPath": ERASE_PATH, "readOnly": True})
        volumes.append(
            {"name": "erase", "projected": {"defaultMode": 0o440, "sources": [*map(_source, assignment.secrets)]}}
        )
    if assignment.digests:
        # The kubelet mounts the Secret: the operator may not read Secrets. A run without the key writes no digests.
        container["env"].append({"name": "LETHE_VALUES_DIGEST_KEY_FILE", "value": f"{DIGEST_KEY_PATH}/key"})
        container["volumeMounts"].append({"name": "digest-key", "mountPath": DIGEST_KEY_PATH, "readOnly": True})
        key = {"secretName": settings.digest_key_secret, "defaultMode": 0o440, "optional": True}
        volumes.append({"name": "digest-key", "secret": key})
    spec = {
        "restartPolicy": "Never",
        "serviceAccountName": assignment.account,
        "automountServiceAccountToken": True,
        "terminationGracePeriodSeconds": GRACE_SECONDS,
    }
    role = "scaled-driver" if size.executors else "driver"
    marks = settings.boundaries.of(assignment.namespace).service_accounts.driver
    return _pod(
        {**marks.pod_labels, **assignment.labels, LABEL_ROLE: role},
        assignment.annotations,
        spec,
        container,
        volumes,
        template,
    )


def executor(run: RunSpec, size: Size, template: Mapping[str, Any], settings: Settings) -> dict[str, Any]:
    """The pod template of executors. Spark adds memory and CPUs. It has no token: executors send nothing to the API server."""
    container = {
        "name": CONTAINER,
        "resources": _storage(size.executor, settings.run_limits),
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "rpc", "mountPath": spark_conf.RPC_PATH, "readOnly": True},
        ],
    }
    key = spark_conf.RPC_SECRET_KEY
    secret = {"secretName": names.rpc_secret(run), "defaultMode": 0o440, "items": [{"key": key, "path": key}]}
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {"sizeLimit": str(TMP_BYTES)}},
        {"name": "rpc", "secret": secret},
    ]
    spec = {"automountServiceAccountToken": False, "serviceAccountName": names.executors(run.dataset.name)}
    marks = settings.boundaries.of(run.dataset.namespace).service_accounts.executor
    annotations = {ANNOTATION_DATASET: run.dataset.name}
    labels = {**marks.pod_labels, **names.run_labels(run), LABEL_ROLE: "executor"}
    pod = _pod(labels, annotations, spec, container, volumes, template)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _pod(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    spec: dict[str, Any],
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
    template: Mapping[str, Any],
) -> dict[str, Any]:
    more = template.get("spec") or {}
    metadata = template.get("metadata") or {}
    # With a proxy container beside the driver, the Job would never end.
    unproxied = {"sidecar.istio.io/inject": "false"}
    added: Mapping[str, Any] = next(iter(more.get("containers") or ()), {})
    return {
        "metadata": {
            "labels": {**(metadata.get("labels") or {}), **labels},
            "annotations": {**unproxied, **(metadata.get("annotations") or {}), **annotations},
        },
        "spec": {
            **{field: more[field] for field in POD_FIELDS if field in more},
            "enableServiceLinks": False,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": UID,
                "runAsGroup": UID,
                "fsGroup": UID,
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            **spec,
            "containers": [
                {
                    **container,
                    "env": [*(container.get("env") or ()), *(added.get("env") or ())],
                    "volumeMounts": [*container["volumeMounts"], *(added.get("volumeMounts") or ())],
                }
            ],
            "volumes": [*volumes, *(more.get("volumes") or ())],
        },
    }


def _source(file: SecretFile) -> dict[str, Any]:
    """A Secret as a volume source. The pod starts even if it is missing: the run reports that and carries out the others."""
    return {"secret": {"name": file.secret, "items": [{"key": file.key, "path": file.file}], "optional": True}}


def _retention(settings: Settings) -> list[dict[str, Any]]:
    kept = settings.record_retention
    return [] if kept is None else [{"name": "LETHE_ERASURE_RECORD_RETENTION", "value": str(kept)}]


def _container_security() -> dict[str, Any]:
    return {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


def _resources(pod: Pod, limits: RunLimits) -> dict[str, Any]:
    storage, most = _storage(pod, limits), spark_conf.cpu_limit(pod, limits)
    return {
        "requests": {"cpu": f"{round(pod.cpu * 1000)}m", "memory": str(pod.memory), **storage["requests"]},
        "limits": {**({"cpu": most} if most else {}), "memory": str(pod.memory), **storage["limits"]},
    }


def _storage(pod: Pod, limits: RunLimits) -> dict[str, Any]:
    """Space on the node's disk, for the pod's folders and its log. The kubelet evicts a pod that uses more."""
    most = (pod.scratch or limits.scratch) + TMP_BYTES + LOG_BYTES
    return {"requests": {EPHEMERAL: str(LOG_BYTES)}, "limits": {EPHEMERAL: str(most)}}


def _field(name: str, path: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
