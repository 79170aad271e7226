"""How far an erasure is, from the ledger of a real table to the status of a Restatement that has ended long ago."""

from dataclasses import replace
from pathlib import Path

import pytest
from lethe.kube import NotFound
from lethe.ledger.tombstone import BlockerKind, ErasureBlocker

from tests.support.builders import NOW
from tests.support.erasing import OPEN, ErasingLake
from tests.support.fake_cluster import Client
from tests.support.small_lake import FLIGHTS
from tests.support.tables import commit_delta

PURGED = replace(OPEN, purged_by=5, purged_at=5, purged_time=NOW)
HELD = replace(PURGED, blockers=(ErasureBlocker(BlockerKind.TAG, "audit"),), blockers_count=1)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ErasingLake:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return ErasingLake.make(tmp_path, ttlSecondsAfterFinished=0)


def test_one_operator_tells_each_step_and_deletes_it_only_after_the_last(lake: ErasingLake) -> None:
    """It is looked at although it has succeeded, since the ledger says another thing than its status."""
    lake.table.manage_snapshots().create_tag(lake.table.current_snapshot().snapshot_id, "audit").commit()  # type: ignore[union-attr]
    operator = lake.operator()
    operator(FLIGHTS)
    steps = [lake.erased()]
    for erasure in (PURGED, HELD):
        commit_delta(lake.table, set_erasures=(erasure,))
        operator(FLIGHTS)
        steps.append(lake.erased())
    lake.verified()
    operator(FLIGHTS)
    steps.append(lake.erased())

    operator(FLIGHTS)

    assert steps == [
        ("False", "RowsInTable"),
        ("Unknown", "ErasureNotVerified"),
        ("False", "ErasureBlocked"),
        ("True", "Erased"),
    ]
    with pytest.raises(NotFound):
        lake.erased()


def test_a_property_that_forbids_to_delete_files_is_named_with_what_to_do(lake: ErasingLake) -> None:
    blocker = ErasureBlocker(BlockerKind.TABLE_PROPERTY, "gc.enabled", None, "why")
    commit_delta(lake.table, set_erasures=(replace(PURGED, blockers=(blocker,), blockers_count=1),))

    lake.operator()(FLIGHTS)

    (found,) = (c for c in lake.erase_status()["conditions"] if c["type"] == "Erased")
    assert (found["status"], found["reason"]) == ("False", "GcDisabled")
    assert "the table property gc.enabled is not true" in found["message"]
    assert "ALTER TABLE … UNSET TBLPROPERTIES ('gc.enabled')" in found["message"]


def test_nothing_is_written_while_it_stands_as_it_stood(lake: ErasingLake) -> None:
    lake.table.manage_snapshots().create_tag(lake.table.current_snapshot().snapshot_id, "audit").commit()  # type: ignore[union-attr]
    commit_delta(lake.table, set_erasures=(HELD,))
    client = Client(lake.cluster)
    operator = lake.operator(client)
    operator(FLIGHTS)
    client.requests.clear()

    operator(FLIGHTS)

    assert not [r for r in client.requests if "Restatement" in r or "patch" in r]


def test_an_operator_that_has_just_started_tells_the_same_of_one_that_was_created_again(lake: ErasingLake) -> None:
    lake.verified()
    lake.operator()(FLIGHTS)
    before = lake.erase_status()["erasure"]
    lake.create_again(ttlSecondsAfterFinished=0)

    lake.operator()(FLIGHTS)

    assert lake.erased() == ("True", "Erased")
    assert lake.erase_status()["erasure"] == before
