"""The rule that sizes a run."""

import pytest
from lethe.contract.dataset import RunTemplate
from lethe.contract.kubernetes import GIB, MIB
from lethe.contract.settings import TASK_BYTES
from lethe_operator.runs.pod import merged, size


def a_template(**fields: object) -> RunTemplate:
    return RunTemplate.model_validate(fields)


@pytest.mark.parametrize(
    ("tasks", "driver_cpu", "executors", "expected"),
    [
        (0, "500m", {}, 0),
        (8, "500m", {}, 0),  # two threads, four rounds
        (9, "500m", {}, 3),  # one core, four rounds: ceil(9 / 4)
        (9, "4", {}, 0),  # 16 fit four cores
        (1000, "500m", {}, 8),  # not more than max
        (1000, "500m", {"max": 20, "cpu": "4"}, 20),
        (40, "500m", {"max": 20, "cpu": "4"}, 3),  # ceil(40 / 16)
        (0, "500m", {"min": 2}, 2),  # asked for, however little there is
        (1000, "500m", {"max": 0}, 0),  # the driver always alone
        (0, "500m", {"min": 3, "max": 2}, 3),
    ],
)
def test_executors_follow_the_bytes_between_min_and_max(
    tasks: int, driver_cpu: str, executors: dict[str, object], expected: int
) -> None:
    template = a_template(driver={"cpu": driver_cpu}, executors=executors)

    assert expected == size(tasks * TASK_BYTES, template).executors


@pytest.mark.parametrize("memory", ["1Gi", "2Gi", "8Gi"])
def test_heap_and_the_rest_fit_into_the_limit(memory: str) -> None:
    chosen = size(10**12, a_template(driver={"memory": memory}, executors={"memory": memory}))

    for pod in (chosen.driver, chosen.executor):
        assert pod.memory // 4 <= pod.heap <= pod.memory - 384 * MIB


@pytest.mark.parametrize(("memory", "mib"), [("2Gi", 512), ("16Gi", 2048)])
def test_decoders_of_larger_pods_may_use_more_memory(memory: str, mib: int) -> None:
    driver = size(0, RunTemplate.model_validate({"driver": {"memory": memory}})).driver

    assert driver.decoder_memory == mib * MIB
    assert bool(driver.decoder_variables) == (mib > 512)


def test_a_driver_with_hardly_any_memory_still_gets_a_heap() -> None:
    assert size(0, a_template(driver={"memory": "300Mi"})).driver.heap == 75 * MIB


def test_a_dataset_overrides_the_chart_field_by_field() -> None:
    chart = a_template(
        driver={"cpu": "500m", "memory": "2Gi"},
        executors={"max": 8, "memory": "2Gi"},
        podTemplate={"spec": {"nodeSelector": {"pool": "batch"}, "priorityClassName": "low"}},
    )
    dataset = a_template(
        driver={"memory": "4Gi"},
        executors={"max": 2},
        podTemplate={"spec": {"nodeSelector": {"disk": "ssd"}, "priorityClassName": "high"}},
    )

    both = merged(chart, dataset)

    assert (
        both.driver.cpu,
        both.driver.memory,
        both.executors.max,
        both.executors.memory,
    ) == (0.5, 4 * GIB, 2, 2 * GIB)
    assert both.pod_template["spec"] == {"nodeSelector": {"pool": "batch", "disk": "ssd"}, "priorityClassName": "high"}
