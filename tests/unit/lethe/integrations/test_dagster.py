"""What the sensor of Dagster reports of the batches that the gateway lists. Dagster itself is not needed."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from importlib import import_module
from types import SimpleNamespace
from typing import Any

import pytest

MODULE = "lethe.integrations.dagster"
NOON = datetime(2026, 11, 29, 12, tzinfo=UTC)
Look = Callable[[str | None, Sequence[tuple[str, str, datetime]]], tuple[list[tuple[str, str]], str | None]]


class _Skipped:
    asset_events = ()
    cursor = None

    def __init__(self, why: str) -> None:
        assert why


@pytest.fixture
def look(monkeypatch: pytest.MonkeyPatch) -> Look:
    """Evaluate the sensor with a cursor, while the gateway lists these batches: id, state, and time of the state."""
    names = ("AssetExecutionContext", "AssetMaterialization", "AssetObservation", "ConfigurableResource")
    names += ("DynamicPartitionsDefinition", "MaterializeResult", "SensorDefinition", "SensorEvaluationContext")
    classes = dict.fromkeys((*names, "SensorResult"), SimpleNamespace)
    sensor = {"sensor": lambda **_: lambda function: function, "AssetKey": str, "SkipReason": _Skipped}
    monkeypatch.setitem(sys.modules, "dagster", SimpleNamespace(**classes, **sensor))
    monkeypatch.setitem(sys.modules, MODULE, SimpleNamespace())  # so that what is imported now goes afterwards
    monkeypatch.delitem(sys.modules, MODULE)
    module: Any = import_module(MODULE)
    evaluate = module.batch_sensor("flights", SimpleNamespace(build_add_request=list), "flights")

    def evaluated(
        cursor: str | None, listed: Sequence[tuple[str, str, datetime]]
    ) -> tuple[list[tuple[str, str]], str | None]:
        def batches(_dataset: str, states: Sequence[str], since: datetime | None) -> Iterator[dict[str, Any]]:
            for batch_id, state, time in listed:
                if state in states and (since is None or time >= since):
                    yield {"id": batch_id, "state": state, "stateTime": time.isoformat()}

        @contextmanager
        def client() -> Iterator[Any]:
            yield SimpleNamespace(batches=batches)

        found = evaluate(SimpleNamespace(cursor=cursor), SimpleNamespace(client=client))
        events = [(e.metadata["lethe/state"], e.partition) for e in found.asset_events]
        return events, found.cursor or cursor

    return evaluated


def test_a_batch_that_is_promoted_again_is_reported_again(look: Look) -> None:
    """A Revert that is undone within minutes."""
    minute = timedelta(minutes=1)

    promoted, cursor = look(None, [("a", "promoted", NOON)])
    reverted, cursor = look(cursor, [("a", "reverted", NOON + minute)])
    undone, cursor = look(cursor, [("a", "promoted", NOON + 2 * minute)])
    nothing, _ = look(cursor, [("a", "promoted", NOON + 2 * minute)])

    assert (promoted, reverted, undone) == ([("promoted", "a")], [("reverted", "a")], [("promoted", "a")])
    assert nothing == []
