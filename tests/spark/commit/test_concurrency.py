"""Several processes and a foreign writer on one table at once: no row is lost or added twice, and every run succeeds."""

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pytest
from lethe import ledger_store
from lethe.base import names
from lethe.iceberg.facts import observe
from lethe_spark.apps.session import make_session
from pyiceberg.exceptions import CommitFailedException
from pyspark.sql import SparkSession

from tests.spark.support.story import Story, of_batches
from tests.spark.support.work_process import Answer, Orders, WorkProcess, work_processes
from tests.support.lake import CATALOG, Lake

PROCESSES = 4
PER_ROUND = 4  # batches that are buffered for a round; each process is told to promote all but one of them


@pytest.fixture(scope="module")
def processes(lake: Lake, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[WorkProcess]]:
    with work_processes(lake, tmp_path_factory.mktemp("work_processes"), PROCESSES) as started:
        yield started


@dataclass
class ForeignWriter:
    """A writer that knows nothing of ledgers and appends a row a time, in a thread of its own, until told to stop."""

    story: Story
    stopped: threading.Event = field(default_factory=threading.Event)
    appended: list[str] = field(default_factory=list)
    in_doubt: list[str] = field(default_factory=list)
    starved: int = 0

    def __enter__(self) -> "ForeignWriter":
        self.thread = threading.Thread(target=self._work)
        self.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self.thread.join(timeout=120)

    def _work(self) -> None:
        for n in itertools.count():
            batch = f"foreign-{n}"
            try:
                self.story.append_as_foreign_writer(batch)
                self.appended.append(batch)
            except CommitFailedException:
                self.starved += 1
            except Exception:  # the catalog's own, such as "database is locked": nobody knows
                self.in_doubt.append(batch)
            if self.stopped.wait(0.3):
                return


@pytest.mark.long
@pytest.mark.parametrize(
    ("catalog", "rounds"),
    [
        pytest.param("pg", 2, id="pg"),
        pytest.param("rest", 1, id="rest"),
        *(pytest.param(c, 12, id=f"{c}-long") for c in (CATALOG, "pg", "rest")),
    ],
)
def test_many_writers_on_one_table_lose_nothing_and_repeat_nothing(
    spark: SparkSession,
    lake: Lake,
    processes: list[WorkProcess],
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
    catalog: str,
    rounds: int,
) -> None:
    """Each promotes batches that others promote too, takes back one of its own and one that all take back."""
    if catalog != CATALOG:
        request.getfixturevalue(catalog)
    make_session(catalog)
    story = Story.begin(spark, lake, catalog=catalog)
    new = [[f"new-{r}-{i}" for i in range(PER_ROUND)] for r in range(rounds)]
    own = [[f"own-{p}-{r}" for r in range(rounds)] for p in range(PROCESSES)]
    shared = [f"shared-{r}" for r in range(rounds)]
    kept = ["kept-1", "kept-2"]
    story.put(*kept, *shared, *itertools.chain(*own), *itertools.chain(*new), rows=2)
    story.consolidate(*kept, *shared, *itertools.chain(*own))
    orders = [
        Orders(
            catalog,
            story.name,
            consolidate=[[b for i, b in enumerate(ids) if i != p % PER_ROUND] for ids in new],
            revert=[pair for r in range(rounds) for pair in ((own[p][r], own[p][r]), (shared[r], shared[r]))],
        )
        for p in range(PROCESSES)
    ]

    began = time.monotonic()
    with ForeignWriter(story) as foreign_writer:
        for process, order in zip(processes, orders, strict=True):
            process.send(order)
        answers = [process.receive(within_seconds=180 + 40 * rounds) for process in processes]
    seconds = time.monotonic() - began

    attempts = [n for a in answers for n in a.attempts]
    record_property("attempts", {"of each run": attempts, "seconds": round(seconds, 1)})
    record_property("foreign writer", {"appended": len(foreign_writer.appended), "starved": foreign_writer.starved})
    print(
        f"{catalog}: {seconds:.0f} s, attempts {sorted(attempts)}, foreign writer "
        f"{len(foreign_writer.appended)}+{foreign_writer.starved}"
    )
    assert [a.failed for a in answers] == [[]] * PROCESSES
    check_nothing_lost(story, answers, [*shared, *itertools.chain(*own)])
    expected = of_batches(*kept, *itertools.chain(*new), rows=2)
    rows = story.rows_at()
    strange = Counter({row: n for row, n in rows.items() if str(row[0]).startswith("foreign-")})
    assert rows - strange == expected
    assert set(rows.values()) == {1}
    assert (
        set(foreign_writer.appended)
        <= {str(row[0]) for row in strange}
        <= {*foreign_writer.appended, *foreign_writer.in_doubt}
    )
    check_counts(story)
    story.check_reads()


def check_nothing_lost(story: Story, answers: Sequence[Answer], reverted: Sequence[str]) -> None:
    """What a process was told is done is in the ledger that came out in the end."""
    ledger = story.ledger()
    acknowledged = {key for a in answers for key in a.reverted}
    assert len(acknowledged) == len(reverted)
    assert acknowledged <= set(ledger.requests)
    assert {t.id for t in ledger.tombstones.values()} == set(reverted)


def check_counts(story: Story) -> None:
    """What each summary counts is what its ledger holds, beside that of the snapshot before."""
    table = story.table()
    facts = observe(table, "batch_id")
    before: set[tuple[int, str]] = set()
    versions = []
    for snapshot in reversed(story.snapshots()):
        keys = story.keys(snapshot)
        if names.LEDGER not in keys:
            continue
        ledger = ledger_store.load(table.io, facts, snapshot.snapshot_id).ledger
        now = {t.key for t in ledger.tombstones.values()}
        assert len(ledger.tombstones) == len(now)
        assert keys[names.TOMBSTONE_TOTAL] == str(len(now))
        assert keys[names.TOMBSTONE_ADDED] == str(len(now - before))
        assert keys[names.TOMBSTONE_DELETED] == str(len(before - now))
        before = now
        versions.append(ledger.version)
    assert versions == list(range(versions[0], versions[0] + len(versions)))  # each on the one before
