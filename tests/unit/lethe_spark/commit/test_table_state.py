"""Whether another writer's rows may lie anywhere: answered from summaries alone, and yes where nobody knows."""

from typing import Any

import pytest
from lethe.base.names import LEDGER_SINCE
from lethe.iceberg.facts import TableFacts
from lethe.ledger.ledger import EMPTY
from lethe.ledger.lineage import Resolution, Snapshot
from lethe.ledger_store import Loaded
from lethe_spark.commit.table_state import Base

from tests.support.builders import FIELD, RUN, a_history, a_snapshot

CARRIER = a_snapshot(1, ledger="L1", lethe__run_id=RUN, lethe__foreign_files="false")


def a_base(resolution: Resolution, *snapshots: Snapshot, since: str = "0") -> Base:
    facts = TableFacts(
        "t", "uuid", "s3://lake/t", 2, None, None, properties={LEDGER_SINCE: since}, snapshots=a_history(*snapshots)
    )
    nobody_asks: Any = None
    return Base(nobody_asks, facts, Loaded(EMPTY, resolution), FIELD)


def foreign(operation: str) -> Snapshot:
    return a_snapshot(2, 1, operation=operation)


CASES = {
    "a table of ours alone": (a_base(Resolution("L1", 1), CARRIER), False),
    "a new table": (a_base(Resolution(None, None)), False),
    "a table that was there before Lethe": (a_base(Resolution(None, None), since="7"), True),
    "a foreign append": (a_base(Resolution("L1", 1, (2,)), CARRIER, foreign("append")), True),
    "a foreign copy-on-write": (a_base(Resolution("L1", 1, (2,)), CARRIER, foreign("overwrite")), True),
    "a foreign compaction": (a_base(Resolution("L1", 1, (2,)), CARRIER, foreign("replace")), False),
    "a foreign deletion": (a_base(Resolution("L1", 1, (2,)), CARRIER, foreign("delete")), False),
    "a foreign append before the last commit": (
        a_base(Resolution("L1", 1), a_snapshot(1, ledger="L1", lethe__foreign_files="true")),
        True,
    ),
    "a carrier that does not say": (a_base(Resolution("L1", 1), a_snapshot(1, ledger="L1")), True),
    "a carrier that was expired": (a_base(Resolution("L1", 1, (2,)), foreign("replace")), True),
}


@pytest.mark.parametrize(("base", "expected"), CASES.values(), ids=CASES)
def test_whether_files_of_other_writers_may_be_there(base: Base, expected: bool) -> None:
    assert base.has_foreign_files is expected
