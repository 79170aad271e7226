"""Engines that know nothing of Lethe work on its tables, at moments that they choose. After each: no tombstoned row returns,
no live row is lost, every retained snapshot reads as it did, and Lethe's next commit stamps the head."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lethe
import lethe_spark
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base import names
from lethe.base.errors import LedgerError
from pyiceberg.expressions import EqualTo
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.spark.support.built_once import built_once
from tests.spark.support.story import Row, Story, local, of_arrow, of_batches, of_spark
from tests.support.lake import Lake

ARROW = pa.schema([("v", pa.int64()), ("day", pa.int32()), ("batch_id", pa.string())])


@dataclass
class History:
    """A table of which A was taken back and purged, and B taken back since; C and D are live. `expected`: the rows of each
    snapshot as the test knows them, not as anybody reads them."""

    story: Story
    expected: dict[int, Counter[Row]]

    @property
    def spark(self) -> SparkSession:
        return self.story.spark

    def sql(self, text: str) -> None:
        self.story.sql(text)

    def remember(self, rows: Counter[Row]) -> int:
        """These are the rows of what is now the head."""
        head = self.story.head().snapshot_id
        self.expected[head] = rows
        return head

    def append(self, *rows: Row) -> None:
        """A foreign append."""
        values = [{"v": v, "day": day, "batch_id": b} for b, v, day in rows]
        self.story.table().append(pa.Table.from_pylist(values, schema=ARROW))

    def ledger_files(self) -> set[str]:
        folder = Path(local(self.story.table().location()), names.LEDGER_FOLDER)
        return {p.name for p in folder.iterdir()}

    def check(self) -> None:
        """Every retained snapshot of the head's history, by both readers, against what is known of it."""
        name = self.story.full_name
        table = self.story.table()
        head = table.current_snapshot()
        assert head is not None
        assert of_arrow(lethe.scan(name).to_arrow()) == self.expected[head.snapshot_id]
        assert of_spark(lethe_spark.read(self.spark, name)) == self.expected[head.snapshot_id]
        for snapshot in table.snapshots():
            if snapshot.snapshot_id not in self.expected:
                continue  # staged, or on the way to the head
            rows = self.expected[snapshot.snapshot_id]
            assert of_arrow(lethe.scan(name, snapshot_id=snapshot.snapshot_id).to_arrow()) == rows
        parent = head.parent_snapshot_id
        if parent in self.expected and table.snapshot_by_id(parent) is not None:
            assert of_spark(lethe_spark.read(self.spark, name, snapshot_id=parent)) == self.expected[parent]

    def go_on(self, rows: Counter[Row]) -> None:
        """The next commit of ours: the head has a ledger again, and is found with these rows and those of a new batch."""
        self.commit(rows)
        self.check()

    def commit(self, rows: Counter[Row]) -> None:
        self.story.put("Z")
        self.story.consolidate("Z")
        assert self.story.keys().get(names.LEDGER)
        self.remember(rows + of_batches("Z"))


# By the name of the table, what is known of the snapshots that `begun` made.
_EXPECTED: dict[str, dict[int, Counter[Row]]] = {}


@pytest.fixture
def history(spark: SparkSession, lake: Lake) -> History:
    story = begun(spark, lake)
    return History(story, dict(_EXPECTED[story.name]))


@built_once
def begun(spark: SparkSession, lake: Lake) -> Story:
    story = Story.begin(spark, lake)
    known = History(story, _EXPECTED.setdefault(story.name, {}))
    story.filled("ABCD")
    known.remember(of_batches("A", "B", "C", "D"))
    story.revert("A", name="revert-a")
    known.remember(of_batches("B", "C", "D"))
    story.vacuum()
    known.remember(of_batches("B", "C", "D"))
    story.revert("B", name="revert-b")
    known.remember(of_batches("C", "D"))
    return story


LIVE = of_batches("C", "D")
E: Row = ("E", 1, 1)
LATE_B: Row = ("B", 77, 1)
LATE_A: Row = ("A", 77, 2)


def without_day(day: int) -> Counter[Row]:
    return Counter({row: n for row, n in LIVE.items() if row[2] != day})


# --- operations that keep the content of the head, or after which it is what the foreign writer made of it ------------------


def spark_append(h: History) -> Counter[Row]:
    h.sql("INSERT INTO {t} VALUES (1, 1, 'E'), (77, 1, 'B')")
    return LIVE + Counter([E])


def pyiceberg_append(h: History) -> Counter[Row]:
    h.append(E, LATE_B)
    return LIVE + Counter([E])


def compaction(h: History) -> Counter[Row]:
    h.story.compact()
    assert h.story.operation() == "replace"
    return LIVE


def compaction_by_another_order(h: History) -> Counter[Row]:
    """Afterwards rows of one batch lie all over the place."""
    h.sql(
        "CALL {catalog}.system.rewrite_data_files(table => '{name}', strategy => 'sort', sort_order => 'v DESC', "
        "options => map('rewrite-all', 'true'))"
    )
    return LIVE


def rewritten_manifests(h: History) -> Counter[Row]:
    h.sql("CALL {catalog}.system.rewrite_manifests('{name}')")
    return LIVE


def delete_of_a_partition(h: History) -> Counter[Row]:
    h.sql("DELETE FROM {t} WHERE day = 1")
    assert h.story.operation() == "delete"
    return without_day(1)


def delete_of_rows(h: History) -> Counter[Row]:
    h.sql("DELETE FROM {t} WHERE batch_id = 'C'")
    return of_batches("D")


def delete_of_rows_merge_on_read(h: History) -> Counter[Row]:
    """Iceberg's own deletes lie over the files that tombstones lie over."""
    h.sql("ALTER TABLE {t} SET TBLPROPERTIES ('write.delete.mode' = 'merge-on-read')")
    h.sql("DELETE FROM {t} WHERE batch_id = 'C'")
    return of_batches("D")


def update_of_rows(h: History) -> Counter[Row]:
    """Copy-on-write: rows of B are written again under their id."""
    h.sql("UPDATE {t} SET v = v + 1")
    return Counter((b, v + 1, day) for b, v, day in LIVE.elements())


def added_files(h: History) -> Counter[Row]:
    folder = h.story.lake.home / "added" / h.story.name
    (folder / "day=1").mkdir(parents=True)
    rows = [{"v": 1, "batch_id": "E"}, {"v": 77, "batch_id": "B"}]
    schema = pa.schema([("v", pa.int64()), ("batch_id", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / "day=1" / "f.parquet")
    h.sql(f"CALL {{catalog}}.system.add_files(table => '{{name}}', source_table => '`parquet`.`{folder}`')")
    return LIVE + Counter([E])


def pyiceberg_overwrite(h: History) -> Counter[Row]:
    table = h.story.table()
    rows = pa.Table.from_pylist([{"v": 1, "day": 1, "batch_id": "E"}, {"v": 77, "day": 1, "batch_id": "B"}], ARROW)
    table.overwrite(rows, EqualTo("day", 1))
    return without_day(1) + Counter([E])


def pyiceberg_delete(h: History) -> Counter[Row]:
    h.story.table().delete(EqualTo("batch_id", "C"))
    return of_batches("D")


def branch_and_fast_forward(h: History) -> Counter[Row]:
    h.sql("ALTER TABLE {t} CREATE BRANCH audit")
    h.sql("INSERT INTO {t}.branch_audit VALUES (1, 1, 'E'), (77, 1, 'B')")
    h.check()  # nothing of it is on main yet
    h.sql("CALL {catalog}.system.fast_forward('{name}', 'main', 'audit')")
    return LIVE + Counter([E])


def cherry_pick_after_a_revert(h: History) -> Counter[Row]:
    """Staged before C was taken back, published after: not a fast-forward, and with rows of C and B."""
    h.spark.conf.set("spark.wap.id", "audited")
    try:
        h.sql("INSERT INTO {t} VALUES (1, 1, 'E'), (77, 1, 'B'), (78, 1, 'C')")
    finally:
        h.spark.conf.unset("spark.wap.id")
    h.story.revert("C", name="revert-c")
    h.remember(of_batches("D"))
    h.sql("CALL {catalog}.system.publish_changes('{name}', 'audited')")
    return of_batches("D") + Counter([E])


def orphan_removal(h: History) -> Counter[Row]:
    """Through the API: the procedure refuses to look at files of the last day."""
    h.append(E)
    h.remember(LIVE + Counter([E]))
    before = h.ledger_files()
    jvm: Any = h.spark._jvm
    table = jvm.org.apache.iceberg.spark.Spark3Util.loadIcebergTable(h.spark._jsparkSession, h.story.full_name)  # type: ignore[attr-defined]
    later = jvm.java.lang.System.currentTimeMillis() + 60_000
    # As Java writes it: listing by prefix looks for hidden folders only below a location written as storage lists it.
    location = "file:" + local(h.story.table().location())
    for prefix_listing in (True, False):
        action = jvm.org.apache.iceberg.spark.actions.SparkActions.get(h.spark._jsparkSession).deleteOrphanFiles(table)  # type: ignore[attr-defined]
        action.location(location).olderThan(later).usePrefixListing(prefix_listing).execute()
        assert h.ledger_files() == before
    return LIVE + Counter([E])


def expiry_of_a_head_with_a_ledger(h: History) -> Counter[Row]:
    by_spark(h)
    assert len(h.story.table().snapshots()) == 1
    return LIVE


Operation = Callable[[History], Counter[Row]]
# Those that no other test of `make test` has. The others differ in the engine or in the files that they write, or are in other
# tests, too: compactions, deletes and expiries.
QUICK: list[Operation] = [
    cherry_pick_after_a_revert,
    orphan_removal,
]
LONG: list[Operation] = [
    compaction,
    delete_of_rows,
    delete_of_rows_merge_on_read,
    expiry_of_a_head_with_a_ledger,
    spark_append,
    pyiceberg_append,
    compaction_by_another_order,
    rewritten_manifests,
    delete_of_a_partition,
    update_of_rows,
    added_files,
    pyiceberg_overwrite,
    pyiceberg_delete,
    branch_and_fast_forward,
]


@pytest.mark.parametrize(
    "operation",
    [
        *(pytest.param(f, id=f.__name__) for f in QUICK),
        *(pytest.param(f, id=f.__name__, marks=pytest.mark.long) for f in LONG),
    ],
)
def test_after_a_commit_of_a_foreign_writer_no_row_returns_and_none_is_lost(
    history: History, operation: Operation
) -> None:
    rows = operation(history)
    history.remember(rows)
    history.check()

    history.commit(rows)

    # And the rows that were hidden are gone for good once a vacuum has been there.
    history.story.vacuum(key="2")
    history.remember(rows + of_batches("Z"))
    history.check()
    assert not history.story.ledger().tombstones
    assert "B" not in history.story.table().scan().to_arrow()["batch_id"].to_pylist()


def test_late_rows_of_a_purged_batch_are_hidden_from_the_next_commit_on(history: History) -> None:
    """Nothing but that commit knows: the vacuum has forgotten the tombstone, and the foreign writer did not ask."""
    history.append(LATE_A, LATE_B, E)
    bare = history.remember(LIVE + Counter([LATE_A, E]))
    history.check()

    history.go_on(LIVE + Counter([E]))

    assert {t.id for t in history.story.ledger().tombstones.values()} == {"A", "B"}
    assert history.expected[bare][LATE_A] == 1  # what was read then is still what is read of then


def test_a_rollback_takes_the_ledger_with_it(history: History) -> None:
    """To before B was taken back, and before A was purged: what was true then is true again."""
    story = history.story
    first, reverted_a = list(history.expected)[:2]

    history.sql(f"CALL {{catalog}}.system.rollback_to_snapshot('{{name}}', {reverted_a})")
    history.check()
    assert story.states() == {"A": "reverted", "B": "promoted", "C": "promoted", "D": "promoted"}
    # Asked for again, it is carried out again: the ledger of now has never heard of it.
    result = story.revert("B", name="revert-b")
    assert (result.succeeded, result.tombstones_added) == (True, 1)
    history.remember(LIVE)
    history.check()

    history.sql(f"CALL {{catalog}}.system.rollback_to_snapshot('{{name}}', {first})")
    history.check()
    history.go_on(of_batches("A", "B", "C", "D"))


def by_spark(history: History) -> None:
    history.sql("CALL {catalog}.system.expire_snapshots(table => '{name}', older_than => now(), retain_last => 1)")


def by_pyiceberg(history: History) -> None:
    """It takes the parent's id out of snapshots whose parent goes: they look like roots of history then."""
    table = history.story.table()
    held = {r.snapshot_id for r in table.metadata.refs.values()}
    table.maintenance.expire_snapshots().by_ids(
        [i for s in table.snapshots() if (i := s.snapshot_id) not in held]
    ).commit()


@pytest.mark.parametrize("expire", some([by_spark, by_pyiceberg], by_pyiceberg), ids=lambda f: f.__name__)
def test_an_expiry_that_takes_the_ledger_of_a_bare_head_stops_every_read(
    history: History, expire: Callable[[History], None]
) -> None:
    """Nothing of the table's metadata leads to the tombstones any more; showing what they hide would be worse."""
    story = history.story
    history.append(E)

    expire(history)

    with pytest.raises(LedgerError, match=f"LedgerLost: .*{story.name}: snapshot {story.head().snapshot_id} "):
        lethe.scan(story.full_name)
    with pytest.raises(LedgerError, match="LedgerLost"):
        lethe_spark.read(story.spark, story.full_name)
    # Nor is a new ledger begun over it, or the deleted rows purged as if they were live.
    story.put("Z")
    with pytest.raises(LedgerError, match="LedgerLost"):
        story.consolidate("Z")
    with pytest.raises(LedgerError, match="LedgerLost"):
        story.vacuum(key="2")

    # As docs/foreign-writers.md says: the newest root is still there, and somebody names it.
    newest = max(name for name in history.ledger_files() if name.endswith("-root.json"))
    uri = f"{story.table().location()}/{names.LEDGER_FOLDER}/{newest}"
    table = story.table()
    table.append(table.schema().as_arrow().empty_table(), snapshot_properties={names.LEDGER: uri})
    history.remember(LIVE + Counter([E]))
    history.check()
    history.go_on(LIVE + Counter([E]))
