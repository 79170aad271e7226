"""How tasks of Airflow end when the gateway says that a batch will never be promoted. Airflow itself is not needed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest
from lethe.base.errors import InputError, TransientError

MODULE = "lethe.integrations.airflow"


class _FailException(Exception):
    """A task that raises it is not retried."""


class _Task:
    def __init__(self, **_: Any) -> None:
        self.timeout = 60.0


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> Any:
    sdk = SimpleNamespace(BaseHook=object, BaseOperator=_Task, BaseSensorOperator=_Task)
    triggers = SimpleNamespace(BaseTrigger=object, TriggerEvent=dict)
    stubs = {
        "airflow": SimpleNamespace(sdk=sdk, triggers=triggers),
        "airflow.sdk": sdk,
        "airflow.sdk.exceptions": SimpleNamespace(AirflowFailException=_FailException),
        "airflow.triggers": triggers,
        "airflow.triggers.base": triggers,
    }
    for name, module in stubs.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace())  # so that what is imported now goes afterwards
    monkeypatch.delitem(sys.modules, MODULE)
    return import_module(MODULE)


def asked(airflow: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Let the gateway answer every request with an error."""

    def fail(*_: Any, **__: Any) -> None:
        raise error

    @contextmanager
    def connected(_: Any) -> Iterator[Any]:
        yield SimpleNamespace(put=fail, promoted=fail, wait_for_batch=fail, wait=fail, restate=lambda *_: {"name": "r"})

    monkeypatch.setattr(airflow.LetheHook, "get_conn", connected)


@pytest.mark.parametrize("kind", ["deliver", "restate", "poke"])
def test_what_a_retry_cannot_change_is_not_retried_in_the_worker_either(
    airflow: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    common: dict[str, Any] = {"task_id": "t", "deferrable": False}
    match kind:
        case "deliver":
            operator = airflow.LetheDeliverOperator(dataset="orders", folder="/work", **common)
            error, act = InputError("BatchIdUsed", "batch a was reverted"), lambda: operator.execute({"run_id": "r"})
        case "restate":
            operator = airflow.LetheRestateOperator(spec={}, **common)
            error, act = InputError("NotRestated", "restatement r failed"), lambda: operator.execute({})
        case _:
            operator = airflow.LetheBatchSensor(dataset="orders", batch_id="a", **common)
            error, act = InputError("NotPromoted", "batch a is refused"), lambda: operator.poke({})
    asked(airflow, monkeypatch, error)

    with pytest.raises(_FailException, match=error.reason):
        act()


@pytest.mark.parametrize("error", [InputError("NoFolder", "not there yet"), TransientError("GatewayAway", "later")])
def test_what_a_retry_may_change_is_retried(airflow: Any, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    operator = airflow.LetheDeliverOperator(dataset="orders", folder="/work", task_id="t", deferrable=False)
    asked(airflow, monkeypatch, error)

    with pytest.raises(type(error)):
        operator.execute({"run_id": "run-1"})
