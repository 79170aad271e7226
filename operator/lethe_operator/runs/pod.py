"""The pods of a run, the driver's and the template of its executors; their size, and their Spark settings. Pure.

Both comply with the Pod Security Standard `restricted` and have a read-only root file system, whatever a Dataset's pod template
adds. The driver derives the settings of catalogs from the mounted catalogs file, so that no object's spec contains a secret.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeVar, assert_never

from lethe.contract.dataset import ExecutorsSpec, PodSize, RunTemplate
from lethe.contract.kubernetes import GIB, MIB
from lethe.contract.run import RunKind, RunSpec
from lethe.contract.settings import ExecutorRule, Launcher
from lethe.decoder.limits import MEMORY_ENV, Limits

from lethe_operator.resources.boundaries import Boundary, PodLimits
from lethe_operator.resources.common import (
    ANNOTATION_DATASET,
    ANNOTATION_QUEUED_ALONE,
    CONTAINER,
    DIGEST_KEY_PATH,
    ERASE_PATH,
    EXECUTOR_KEY,
    LABEL_QUEUE,
    LABEL_QUEUED_ALONE,
    LABEL_ROLE,
    POD_FIELDS,
    RUN_KEY,
)
from lethe_operator.resources.restatement import SecretFile
from lethe_operator.runs import names
from lethe_operator.settings import RunLimits, Settings, catalogs_secret_of

# What a JVM with Iceberg needs besides its heap, and Python besides the JVM: the driver, and two workers with Arrow, which do
# most of the work.
DRIVER_ROOM_BYTES: Final = 640 * MIB
DRIVER_ROOM_SHARE: Final = 0.5
# Spark's own factor for Python workloads and its own minimum.
EXECUTOR_OVERHEAD_FACTOR: Final = 0.4
EXECUTOR_OVERHEAD_BYTES: Final = 384 * MIB

_DRIVER: Final = PodSize(cpu=1.0, memory=2 * GIB)
_EXECUTORS: Final = ExecutorsSpec(cpu=1.0, memory=2 * GIB, min=0, max=8, wait_seconds=300)


N = TypeVar("N", int, float)


@dataclass(frozen=True)
class Pod:
    """The size of one pod, and how its memory is divided."""

    cpu: float
    """The request."""
    cores: int
    """Tasks that run at the same time."""
    memory: int
    """Bytes, request and limit."""
    heap: int
    """Bytes of the JVM's heap."""
    scratch: int | None
    """Bytes of scratch space; None: the chart's limit."""

    @property
    def decoder_memory(self) -> int:
        """Bytes that one of the processes may use that decode files, one for each task."""
        return max(Limits.memory_bytes, (self.memory - self.heap) // 2 // self.cores)

    @property
    def decoder_variables(self) -> dict[str, str]:
        """Environment variables, if a decoder may use more than the default."""
        return {} if self.decoder_memory == Limits.memory_bytes else {MEMORY_ENV: str(self.decoder_memory)}


@dataclass(frozen=True)
class Size:
    """The size of a run: of its driver, and of the executors that the driver may start."""

    driver: Pod
    executor: Pod
    executors: int
    """At most; 0: the driver works alone, with `driver.cores` threads."""
    fewest: int = 0
    """Executors that stay until the run ends, even if they are idle."""
    wait_seconds: int = 300
    """How long the driver waits for its first executor; then it works alone."""


def size(run_bytes: int, template: RunTemplate, queued_pods: bool = False) -> Size:
    """The size of a run that reads at most `run_bytes`.

    Args:
        template: The Dataset's, merged with the chart's. Fields that neither sets have a default here.
        queued_pods: Kueue admits plain pods.
    """
    driver = _driver(template.driver)
    executor = _executor(template.executors)
    fewest = _first(template.executors.min, _EXECUTORS.min, 0)
    most = max(fewest, _first(template.executors.max, _EXECUTORS.max, 0))
    if _is_queued_job(template) and not queued_pods:
        # Of a Job, Kueue counts the driver only. If it does not look at plain pods, executors would exceed the quota.
        fewest = most = 0
    executors = ExecutorRule(driver.cores, executor.cores, fewest, most).executors(run_bytes)
    wait = _first(template.executors.wait_seconds, _EXECUTORS.wait_seconds, 0)
    return Size(driver, executor, executors, min(fewest, executors), wait)


def _is_queued_job(template: RunTemplate) -> bool:
    """Whether Kueue admits the Job of a run, without its executors. It admits a SparkApplication as a whole."""
    return bool(template.queue) and template.launcher is not Launcher.SPARK_APPLICATION


def merged(chart: RunTemplate, dataset: RunTemplate) -> RunTemplate:
    """The Dataset's run template over the chart's, field by field."""
    return RunTemplate(
        launcher=dataset.launcher or chart.launcher,
        queue=dataset.queue or chart.queue,
        driver=chart.driver.model_copy(update=dataset.driver.model_dump(exclude_none=True)),
        executors=chart.executors.model_copy(update=dataset.executors.model_dump(exclude_none=True)),
        pod_template=_merged(dict(chart.pod_template), dict(dataset.pod_template)),
    )


def within(template: RunTemplate, boundary: Boundary) -> RunTemplate:
    """The run template, reduced to what the namespace's boundary allows.

    This affects only defaults of the chart and of this module: a Dataset that itself requests more is refused before.
    """
    driver = _cut(template.driver, _DRIVER, boundary.driver)
    executors = _cut(template.executors, _EXECUTORS, boundary.executors)
    most = boundary.executors.max
    if most is not None:
        executors["min"] = min(_first(template.executors.min, _EXECUTORS.min, 0), most)
        executors["max"] = min(_first(template.executors.max, _EXECUTORS.max, 0), most)
    return template.model_copy(
        update={
            "driver": template.driver.model_copy(update=driver),
            "executors": template.executors.model_copy(update=executors),
            "queue": boundary.queue or template.queue,
        }
    )


def _cut(wanted: PodSize, default: PodSize, limit: PodLimits) -> dict[str, Any]:
    """The limited fields, each reduced to its limit. Scratch space without a size gets the limit."""
    kept_fields: dict[str, Any] = {}
    for name in ("cpu", "memory", "scratch"):
        most = getattr(limit, name)
        if most is not None:
            kept_fields[name] = min(_first(getattr(wanted, name), getattr(default, name), most), most)
    return kept_fields


def _merged(below: dict[str, object], above: dict[str, object]) -> dict[str, object]:
    result = dict(below)
    for key, value in above.items():
        old = result.get(key)
        result[key] = _merged(dict(old), dict(value)) if isinstance(old, dict) and isinstance(value, dict) else value
    return result


def _driver(pod: PodSize) -> Pod:
    cpu, memory = _first(pod.cpu, _DRIVER.cpu, 1.0), _first(pod.memory, _DRIVER.memory, 2 * GIB)
    room = max(DRIVER_ROOM_BYTES, math.ceil(memory * DRIVER_ROOM_SHARE))
    # At least two threads, even on half a core: a small run mostly waits for storage.
    return Pod(cpu, max(2, math.ceil(cpu)), memory, max(memory - room, memory // 4), pod.scratch)


def _executor(pod: PodSize) -> Pod:
    cpu, memory = _first(pod.cpu, _EXECUTORS.cpu, 1.0), _first(pod.memory, _EXECUTORS.memory, 2 * GIB)
    heap = min(math.floor(memory / (1 + EXECUTOR_OVERHEAD_FACTOR)), memory - EXECUTOR_OVERHEAD_BYTES)
    return Pod(cpu, max(1, math.ceil(cpu)), memory, max(heap, memory // 4), pod.scratch)


def _first(*values: N | None) -> N:
    return next(v for v in values if v is not None)


DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079
EXECUTOR_TEMPLATE_PATH = "/etc/lethe/run/executor.yaml"
SCRATCH = "/scratch"
RPC_PATH = "/etc/lethe/rpc"
RPC_SECRET_KEY = "secret"
# Driver and executors authenticate each other with a secret of the run, and encrypt network traffic and spilled data. The driver
# overrides the file for its own side (lethe_spark.run.executors); without the file Spark refuses to start. The setting names the
# file for both sides, because an executor fetches its settings from the driver before it reads the setting that is for executors
# only (`spark.authenticate.secret.executor.file`).
AUTHENTICATED: Mapping[str, str] = {
    "spark.authenticate": "true",
    "spark.authenticate.secret.file": f"{RPC_PATH}/{RPC_SECRET_KEY}",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
    "spark.io.encryption.keySizeBits": "256",
}
API_TIMEOUT_MS = 60_000
IDLE_SECONDS = 60  # an executor without tasks is released after this time
SHUFFLE_KEPT_SECONDS = 300  # an idle executor with shuffle data of ended jobs is released after this time


def alone(name: str, size: Size) -> dict[str, str]:
    """The settings of a driver without executors. It needs no rights in Kubernetes and no ports."""
    return {"spark.app.name": name, "spark.master": f"local[{size.driver.cores}]"}


def confs(run: RunSpec, size: Size, settings: Settings) -> dict[str, str]:
    """The settings of a driver alone, or of one in client mode with executor pods."""
    if size.executors == 0:
        return alone(names.executor_prefix(run), size)
    executor = size.executor
    document = {
        "spark.app.name": names.executor_prefix(run),
        "spark.master": f"k8s://{settings.api_server}",
        "spark.kubernetes.namespace": run.dataset.namespace,
        **AUTHENTICATED,
        "spark.kubernetes.container.image": settings.spark_image,
        "spark.kubernetes.container.image.pullPolicy": settings.image_pull_policy,
        # The kubelet expands the pod's address: this needs no Service and no DNS name.
        "spark.driver.host": "$(POD_IP)",
        "spark.driver.bindAddress": "$(POD_IP)",
        "spark.driver.port": str(DRIVER_PORT),
        "spark.blockManager.port": str(BLOCK_MANAGER_PORT),
        # Executors get an owner reference to this pod, so Kubernetes deletes them with it.
        "spark.kubernetes.driver.pod.name": "$(POD_NAME)",
        "spark.kubernetes.executor.podNamePrefix": names.executor_prefix(run),
        "spark.kubernetes.executor.podTemplateFile": EXECUTOR_TEMPLATE_PATH,
        "spark.kubernetes.executor.podTemplateContainerName": "spark",
        # Without these four the driver would need rights on ConfigMaps, claims and Services.
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.reusePersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        # The default is ten seconds; on a busy node, a JVM may need that long to start its network threads.
        "spark.kubernetes.driver.connectionTimeout": str(API_TIMEOUT_MS),
        "spark.kubernetes.driver.requestTimeout": str(API_TIMEOUT_MS),
        # Executors that are idle are released, and requested again when tasks wait. Shuffle tracking keeps those with data that
        # an active job still needs.
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        # By default, executors with data of an ended job stay until the run ends.
        "spark.dynamicAllocation.shuffleTracking.timeout": f"{SHUFFLE_KEPT_SECONDS}s",
        "spark.dynamicAllocation.executorIdleTimeout": f"{IDLE_SECONDS}s",
        "spark.dynamicAllocation.minExecutors": str(size.fewest),
        "spark.dynamicAllocation.initialExecutors": str(size.executors),
        "spark.dynamicAllocation.maxExecutors": str(size.executors),
        "spark.executor.cores": str(executor.cores),
        "spark.kubernetes.executor.request.cores": f"{round(executor.cpu * 1000)}m",
        "spark.executor.memory": f"{executor.heap // MIB}m",
        "spark.executor.memoryOverhead": f"{(executor.memory - executor.heap) // MIB}m",
        **{f"spark.executorEnv.{name}": value for name, value in executor.decoder_variables.items()},
        # Without this, the third lost executor ends the application.
        "spark.executor.maxNumFailures": str(max(10, 2 * size.executors)),
        "spark.executor.failuresValidityInterval": "10m",
    }
    volume = "spark.kubernetes.executor.volumes.emptyDir.spark-local-dir-1"
    document[f"{volume}.mount.path"] = SCRATCH
    document[f"{volume}.options.sizeLimit"] = str(executor.scratch or settings.run_limits.scratch)
    most = cpu_limit(executor, settings.run_limits)
    if most:
        document["spark.kubernetes.executor.limit.cores"] = most
    return document


def cpu_limit(pod: Pod, limits: RunLimits) -> str | None:
    """The CPU limit as a quantity; None: no limit."""
    return f"{round(pod.cpu * limits.cpu_factor * 1000)}m" if limits.cpu_factor else None


def scaling(run: RunSpec, size: Size) -> list[str]:
    """The options with which a driver decides about its executors; empty: it works alone."""
    if size.executors == 0:
        return []
    by_plan = ["--executors-by-plan"] if _plans_first(run.kind) else []
    return ["--alone-cores", str(size.driver.cores), "--executor-wait", str(size.wait_seconds), *by_plan]


def _plans_first(kind: RunKind) -> bool:
    """Whether only the run itself can find out how many bytes it reads."""
    match kind:
        case RunKind.VACUUM:
            return True
        case RunKind.CONSOLIDATION | RunKind.REANCHORING | RunKind.RESTATEMENT | RunKind.ERASURE_CHECK:
            return False
        case _:
            assert_never(kind)


def arguments(document: Mapping[str, str], options: Sequence[str] = ()) -> list[str]:
    """The arguments of the image's entry point."""
    return ["driver", *options, *(word for key in sorted(document) for word in ("--conf", f"{key}={document[key]}"))]


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
    account: str
    """Name of its ServiceAccount."""
    labels: Mapping[str, str]
    annotations: Mapping[str, str]
    confs: Mapping[str, str]
    """Spark settings."""
    env: Sequence[Mapping[str, Any]]
    runs: Mapping[str, Any]
    """The volume with the run documents."""
    secrets: Sequence[SecretFile] = ()
    """Values of Erases."""
    digests: bool = False
    """It writes keyed digests of erased values, so it needs the key."""
    options: Sequence[str] = ()
    """With which it decides about its executors."""


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
        confs=confs(run, size, settings),
        env=[
            {"name": "LETHE_RUN_FILE", "value": f"{RUN_PATH}/run.json"},
            {"name": "LETHE_STATUS_CONFIGMAP", "value": config_map},
            {"name": "LETHE_STATUS_PREFIX", "value": prefix},
            *spark,
        ],
        runs={"configMap": {"name": config_map, "items": items}},
        secrets=secrets,
        digests=run.erases_by_values or _writes_records(run.kind),
        options=scaling(run, size),
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
        "args": arguments(assignment.confs, assignment.options),
        "env": [
            _field("POD_NAME", "metadata.name"),
            _field("POD_IP", "status.podIP"),
            _field("POD_NAMESPACE", "metadata.namespace"),
            *assignment.env,
            {"name": "LETHE_DRIVER_MEMORY", "value": f"{size.driver.heap // MIB}m"},
            *({"name": name, "value": value} for name, value in size.driver.decoder_variables.items()),
            {"name": "PYICEBERG_HOME", "value": CATALOGS_PATH},
            {"name": "SPARK_LOCAL_DIRS", "value": SCRATCH},
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
            {"name": "scratch", "mountPath": SCRATCH},
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
        settings,
    )


def executor(run: RunSpec, size: Size, template: RunTemplate, settings: Settings) -> dict[str, Any]:
    """The pod template of executors. Spark adds memory and CPUs. It has no token: executors send nothing to the API server.

    Executors of a Job in a queue of Kueue are admitted one by one. Those of a SparkApplication are admitted with it.
    """
    container = {
        "name": CONTAINER,
        "resources": _storage(size.executor, settings.run_limits),
        "securityContext": _container_security(),
        "volumeMounts": [
            {"name": "tmp", "mountPath": "/tmp"},
            {"name": "rpc", "mountPath": RPC_PATH, "readOnly": True},
        ],
    }
    key = RPC_SECRET_KEY
    secret = {"secretName": names.rpc_secret(run), "defaultMode": 0o440, "items": [{"key": key, "path": key}]}
    volumes: list[dict[str, Any]] = [
        {"name": "tmp", "emptyDir": {"sizeLimit": str(TMP_BYTES)}},
        {"name": "rpc", "secret": secret},
    ]
    spec = {"automountServiceAccountToken": False, "serviceAccountName": names.executors(run.dataset.name)}
    marks = settings.boundaries.of(run.dataset.namespace).service_accounts.executor
    is_queued = _is_queued_job(template)
    annotations = {ANNOTATION_DATASET: run.dataset.name, **({ANNOTATION_QUEUED_ALONE: "pod"} if is_queued else {})}
    queue = {LABEL_QUEUE: template.queue or "", LABEL_QUEUED_ALONE: "true"} if is_queued else {}
    labels = {**marks.pod_labels, **names.run_labels(run), LABEL_ROLE: "executor", **queue}
    pod = _pod(labels, annotations, spec, container, volumes, template.pod_template, settings)
    return {"apiVersion": "v1", "kind": "Pod", **pod}


def _pod(
    labels: Mapping[str, str],
    annotations: Mapping[str, str],
    spec: dict[str, Any],
    container: dict[str, Any],
    volumes: list[dict[str, Any]],
    template: Mapping[str, Any],
    settings: Settings,
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
            **({"hostUsers": False} if settings.user_namespaces else {}),
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
    storage, most = _storage(pod, limits), cpu_limit(pod, limits)
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
