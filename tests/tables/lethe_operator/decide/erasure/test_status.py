"""How far an erasure is, from the ledger of a real table to the status of a Restatement that has ended long ago."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from lethe.contract.result import ErasureOutcome
from lethe.kube import RESTATEMENTS, NotFound
from lethe.ledger.erasure import BlockerKind, Erasure, ErasureBlocker
from lethe.ledger.ledger import Delta
from lethe_operator.resources.restatement import parse_restatement

from tests.support.builders import NOW, RUN, a_request_entry
from tests.support.fake_cluster import Client
from tests.support.resources import a_restatement_body, condition
from tests.support.small_lake import FLIGHTS, SmallLake
from tests.support.tables import SCHEMA, summary_of

SPEC: dict[str, Any] = {"operation": "Erase", "batchIds": ["A"], "ttlSecondsAfterFinished": 0}
KEY = parse_restatement(a_restatement_body("erase", **SPEC)).key
ASKED = a_request_entry(KEY, operation="Erase", batch_ids=("A",))
OPEN = Erasure(KEY, 2, None)
PURGED = replace(OPEN, purged_by=5, purged_at=5, purged_time=NOW)
HELD = replace(PURGED, blockers=(ErasureBlocker(BlockerKind.TAG, "audit"),), blockers_count=1)


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SmallLake:
    """With an empty table, and a Restatement that was carried out."""
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    made = SmallLake.make(tmp_path)
    made.create_table()
    commit(made, set_requests=(ASKED,), set_erasures=(OPEN,))
    made.ask("erase", **SPEC)
    return made


def commit(lake: SmallLake, **changes: Any) -> None:
    table = lake.table
    table.append(SCHEMA.empty_table(), snapshot_properties=summary_of(table, Delta(RUN, **changes)))


def verify(lake: SmallLake) -> None:
    outcome = ErasureOutcome(restatement=KEY, verified_time=NOW, record="s3://r.json", record_sha256="ab")
    told = outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
    closed = replace(ASKED, result={**ASKED.result, "erasure": told})
    commit(lake, set_requests=(closed,), close_erasures=frozenset({KEY}))


def erased(lake: SmallLake) -> tuple[str, str]:
    return condition(lake.cluster.get(RESTATEMENTS, "ns", "erase")["status"], "Erased")


def test_one_operator_tells_each_step_and_deletes_it_only_after_the_last(lake: SmallLake) -> None:
    """It is looked at although it has succeeded, since the ledger says another thing than its status."""
    lake.table.manage_snapshots().create_tag(lake.table.current_snapshot().snapshot_id, "audit").commit()  # type: ignore[union-attr]
    operator = lake.operator()
    operator(FLIGHTS)
    steps = [erased(lake)]
    for erasure in (PURGED, HELD):
        commit(lake, set_erasures=(erasure,))
        operator(FLIGHTS)
        steps.append(erased(lake))
    verify(lake)
    operator(FLIGHTS)
    steps.append(erased(lake))

    operator(FLIGHTS)

    assert steps == [
        ("False", "RowsInTable"),
        ("Unknown", "ErasureNotVerified"),
        ("False", "ErasureBlocked"),
        ("True", "Erased"),
    ]
    with pytest.raises(NotFound):
        erased(lake)


def test_a_property_that_forbids_to_delete_files_is_named_with_what_to_do(lake: SmallLake) -> None:
    blocker = ErasureBlocker(BlockerKind.TABLE_PROPERTY, "gc.enabled", None, "why")
    commit(lake, set_erasures=(replace(PURGED, blockers=(blocker,), blockers_count=1),))

    lake.operator()(FLIGHTS)

    status = lake.cluster.get(RESTATEMENTS, "ns", "erase")["status"]
    (found,) = (c for c in status["conditions"] if c["type"] == "Erased")
    assert (found["status"], found["reason"]) == ("False", "GcDisabled")
    assert "the table property gc.enabled is not true" in found["message"]
    assert "ALTER TABLE … UNSET TBLPROPERTIES ('gc.enabled')" in found["message"]


def test_nothing_is_written_while_it_stands_as_it_stood(lake: SmallLake) -> None:
    lake.table.manage_snapshots().create_tag(lake.table.current_snapshot().snapshot_id, "audit").commit()  # type: ignore[union-attr]
    commit(lake, set_erasures=(HELD,))
    client = Client(lake.cluster)
    operator = lake.operator(client)
    operator(FLIGHTS)
    client.requests.clear()

    operator(FLIGHTS)

    assert not [r for r in client.requests if "Restatement" in r or "patch" in r]


def test_an_operator_that_has_just_started_tells_the_same_of_one_that_was_created_again(lake: SmallLake) -> None:
    verify(lake)
    lake.operator()(FLIGHTS)
    before = lake.cluster.get(RESTATEMENTS, "ns", "erase")["status"]["erasure"]
    lake.cluster.delete(RESTATEMENTS, "ns", "erase")
    lake.ask("erase", **SPEC)

    lake.operator()(FLIGHTS)

    assert erased(lake) == ("True", "Erased")
    assert lake.cluster.get(RESTATEMENTS, "ns", "erase")["status"]["erasure"] == before
