"""The Spark settings of a run that depend on its cluster and its size. Pure.

The driver derives the settings of catalogs from the mounted catalogs file, so that no object's spec contains a secret.
"""

from collections.abc import Mapping, Sequence
from typing import assert_never

from lethe.contract.run import RunKind, RunSpec

from lethe_operator.build import names
from lethe_operator.build.sizing import Pod, Size
from lethe_operator.resources.dataset import MIB
from lethe_operator.settings import RunLimits, Settings

DRIVER_PORT = 7078
BLOCK_MANAGER_PORT = 7079
EXECUTOR_TEMPLATE_PATH = "/etc/lethe/run/executor.yaml"
SCRATCH = "/scratch"
RPC_PATH = "/etc/lethe/rpc"
RPC_SECRET_KEY = "secret"
# Driver and executors authenticate each other with a secret of the run, and encrypt network traffic and spilled data. The driver
# overrides the file for its own side (lethe_spark.run.rpc_secret); without the file Spark refuses to start. The setting names the
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
