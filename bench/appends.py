"""A commit to a table with many snapshots, beside the cheapest commit of Iceberg itself: an empty append through its Java API.

Both write the table's metadata, which lists all snapshots, and both begin on a handle that has not seen the commit before theirs.
"""

from typing import Any

import lethe_spark
from lethe_spark.jvm.gateway import each
from lethe_spark.jvm.spark_table import SparkTable

from bench.commits import build
from bench.lake import Lake
from bench.scales import LedgerScale
from bench.timing import Case, Sample, in_turns, say, seconds_of

EMPTY = "Iceberg, an empty append"
COMMIT = "Lethe, a commit"
REVERT = "Lethe's SDK, a revert"
# Tombstones of the ledger before the measured commits.
ACTIVE = 1_000
# Beginnings of Lethe's keys in a summary. Iceberg adds the others itself.
OURS = ("lethe.", "tombstone.")
# Snapshots that one transaction of the preparation adds.
PER_TRANSACTION = 250


def measure(lake: Lake, scale: LedgerScale) -> dict[str, Any]:
    """The three kinds of commits in turns, on one table."""
    subject = build(lake, ACTIVE, scale, f"run.snapshots_{scale.snapshots}")
    _add_snapshots(subject.table, scale.snapshots)
    subject.table.refresh()
    theirs = lake.load(subject.table.name)
    assert theirs is not None

    def revert(number: int) -> Sample:
        ids = [f"reverted-{number + 1:03d}.{i:06d}" for i in range(scale.added)]
        return Sample(seconds_of(lambda: lethe_spark.revert(lake.spark, subject.table.full_name, ids)))

    def append(_: int) -> Sample:
        return Sample(seconds_of(lambda: theirs.java.newFastAppend().commit()))

    rounds = scale.append_rounds
    results = in_turns(
        [
            Case({"kind": EMPTY}, append, rounds),
            Case({"kind": COMMIT}, lambda n: subject.commit(n, scale.added), rounds),
            Case({"kind": REVERT}, revert, rounds),
        ]
    )
    return {"added": scale.added, "snapshots": scale.snapshots, "results": results}


def _add_snapshots(table: SparkTable, wanted: int) -> None:
    """Add empty snapshots until there are so many. Each has the summary of a commit by Lethe, with the ledger of the head."""
    say(f"a table of {wanted:,} snapshots")
    found = {str(e.getKey()): str(e.getValue()) for e in each(table.java.currentSnapshot().summary().entrySet())}
    summary = {k: v for k, v in found.items() if k.startswith(OURS)}
    while (missing := wanted - table.snapshot_count) > 0:
        transaction = table.java.newTransaction()
        for _ in range(min(missing, PER_TRANSACTION)):
            update = transaction.newFastAppend()
            for key, value in summary.items():
                update = update.set(key, value)
            update.commit()
        transaction.commitTransaction()
        table.refresh()
