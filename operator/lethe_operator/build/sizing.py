"""The size of a run: the driver alone, or with executors, and how memory is divided. Pure."""

import math
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from lethe.contract.executors import ExecutorRule
from lethe.decoder.limits import MEMORY_ENV, Limits

from lethe_operator.resources.boundaries import Boundary, PodLimits
from lethe_operator.resources.dataset import GIB, MIB, ExecutorsSpec, PodSize, RunTemplate
from lethe_operator.resources.launcher import Launcher

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
    cpu: float  # the request
    cores: int  # tasks that run at the same time
    memory: int  # bytes, request and limit
    heap: int  # bytes of the JVM's heap
    scratch: int | None  # bytes of scratch space; None: the chart's limit

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
    driver: Pod
    executor: Pod
    executors: int  # at most; 0: the driver works alone, with `driver.cores` threads
    fewest: int = 0  # executors that stay until the run ends, even if they are idle
    wait_seconds: int = 300  # how long the driver waits for its first executor; then it works alone


def size(run_bytes: int, template: RunTemplate) -> Size:
    """The size of a run that reads at most `run_bytes`.

    Args:
        template: The Dataset's, merged with the chart's. Fields that neither sets have a default here.
    """
    driver = _driver(template.driver)
    executor = _executor(template.executors)
    fewest = _first(template.executors.min, _EXECUTORS.min, 0)
    most = max(fewest, _first(template.executors.max, _EXECUTORS.max, 0))
    if template.queue and template.launcher is not Launcher.SPARK_APPLICATION:
        # Of a Job, Kueue counts the driver only, and leaves the driver's own pods alone: executors would exceed the quota.
        fewest = most = 0
    executors = ExecutorRule(driver.cores, executor.cores, fewest, most).executors(run_bytes)
    wait = _first(template.executors.wait_seconds, _EXECUTORS.wait_seconds, 0)
    return Size(driver, executor, executors, min(fewest, executors), wait)


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
    """The run template, reduced to what the namespace's boundary allows. This affects only defaults of the chart and of this
    module: a Dataset that itself requests more is refused before."""
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
    found: dict[str, Any] = {}
    for name in ("cpu", "memory", "scratch"):
        most = getattr(limit, name)
        if most is not None:
            found[name] = min(_first(getattr(wanted, name), getattr(default, name), most), most)
    return found


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
