"""An open catalog is used for several updates of the table of batches, as long as it is surely the right one."""

from types import SimpleNamespace
from typing import Any

import pytest
from lethe import batches_table
from lethe.iceberg import catalogs
from lethe_spark.commit import ledger_commit


class Catalogs:
    """Counts the catalogs that are opened."""

    def __init__(self) -> None:
        self.properties = {"uri": "sqlite:////tmp/a.db"}
        self.opened: list[object] = []
        self.used: list[object] = []
        self.error: Exception | None = None
        self.now = 1000.0

    def load(self, _name: str) -> object:
        self.opened.append(object())
        return self.opened[-1]

    def update(self, catalog: object, *_: Any) -> None:
        self.used.append(catalog)
        if self.error is not None:
            raise self.error


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Catalogs:
    found = Catalogs()
    monkeypatch.setattr(catalogs, "properties", lambda _: dict(found.properties))
    monkeypatch.setattr(catalogs, "load", found.load)
    monkeypatch.setattr(batches_table, "bring_up_to_date", found.update)
    monkeypatch.setattr(ledger_commit, "_open", {})
    monkeypatch.setattr(ledger_commit.time, "monotonic", lambda: found.now)
    return found


def keep_up() -> str:
    context: Any = SimpleNamespace(batch_column="batch_id", step=lambda _: None)
    table: Any = SimpleNamespace(catalog="main", name="air.flights", full_name="main.air.flights")
    return ledger_commit.keep_up(context, table, create=False)


def test_updates_soon_after_each_other_share_a_catalog(configured: Catalogs) -> None:
    assert (keep_up(), keep_up()) == ("", "")

    assert configured.used == [configured.opened[0]] * 2


def test_it_is_opened_again_after_a_while(configured: Catalogs) -> None:
    keep_up()
    configured.now += ledger_commit.OPEN_SECONDS

    keep_up()

    assert configured.used == configured.opened
    assert len(configured.opened) == 2


def test_it_is_opened_again_with_other_properties(configured: Catalogs) -> None:
    keep_up()
    configured.properties = {"uri": "sqlite:////tmp/b.db"}

    keep_up()

    assert configured.used == configured.opened
    assert len(configured.opened) == 2


def test_it_is_opened_again_after_a_failure(configured: Catalogs) -> None:
    configured.error = ConnectionError("gone")
    assert keep_up() == "ConnectionError"
    configured.error = None

    assert keep_up() == ""

    assert configured.used == configured.opened
    assert len(configured.opened) == 2
