"""Rows at the end of a range are the rows at its beginning, plus the appended, minus the deleted. Which files a read filters."""

from collections import Counter
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import InputError
from lethe.files.bounds import FileBounds
from lethe.files.increment import (
    Rows,
    SkippedRange,
    SnapshotFiles,
    Tombstoned,
    appended,
    covered_by,
    deleted,
    plan_range,
    plan_read,
    skipped_ranges,
    unsure_of,
)
from lethe.ledger.lineage import Snapshot
from lethe.ledger.tombstone import META_PARTITIONS, Tombstone

from tests.support.builders import a_file, a_history, a_snapshot, a_tombstone

BY_POSITION = ("DeletionVectors", "PositionDeletes")  # `lethe.deletes` of masking snapshots, whose rows are read alike


def ours(id: int, parent: int | None, operation: str = "append", **keys: str) -> Snapshot:
    return a_snapshot(id, parent, ledger=f"L{id}", operation=operation, **keys)


def test_files_of_the_start_are_read_only_if_rows_may_have_become_visible_again() -> None:
    quiet = a_history(
        ours(1, None), ours(2, 1, tombstone__metrics__deleted__count="0"), a_snapshot(3, 2, operation="append")
    )
    undone = a_history(ours(1, None), ours(2, 1, tombstone__metrics__deleted__count="2"))
    vacuumed = a_history(
        ours(1, None), ours(2, 1, tombstone__metrics__deleted__count="2", tombstone__vacuum__file="v2")
    )

    assert not plan_range(quiet, 1, 3).undoes
    assert plan_range(undone, 1, 2).undoes
    assert not plan_range(vacuumed, 1, 2).undoes


REFUSED = {
    "a later snapshot": ((5, 3), "NotAnAncestor"),
    "one of another branch": ((6, 3), "NotAnAncestor"),
    "a range that lost a snapshot": ((0, 3), "SnapshotNotFound"),
    "another writer's delete": ((3, 4), "ForeignChange"),
    "another writer's overwrite": ((4, 5), "ForeignChange"),
    "an erase by records": ((3, 7), "ErasedBetween"),
    "an erase by records beside a replay": ((3, 8), "ErasedBetween"),
    "rows that were too old, beside a purge": ((3, 9), "RetentionBetween"),
}


@pytest.mark.parametrize(("ends", "reason"), REFUSED.values(), ids=REFUSED)
def test_an_increment_that_cannot_be_computed_is_refused(ends: tuple[int, int], reason: str) -> None:
    root = a_snapshot(1, None, operation="append")
    history = a_history(
        root,
        ours(3, 1),
        a_snapshot(4, 3, operation="delete"),
        a_snapshot(5, 4, operation="overwrite"),
        a_snapshot(6, 1, operation="append"),
        ours(7, 3, "delete"),
        ours(8, 3, "overwrite"),
        ours(9, 3, "delete", tombstone__vacuum__file="v9", **{"lethe.retention-cutoff": "2024-06-01"}),
    )
    if reason == "SnapshotNotFound":
        history = a_history(ours(3, 2), a_snapshot(0, None, operation="append"))

    with pytest.raises(InputError) as refused:
        plan_range(history, *ends, table="air.flights")

    told = refused.value.message
    assert refused.value.reason == reason
    assert "air.flights" in told
    between = reason in ("ForeignChange", "ErasedBetween", "RetentionBetween")
    assert (f"Read up to the snapshot before it ({ends[0]}), and then from this snapshot" in told) is between
    assert ("copy the whole table again" in told) is (reason in ("ErasedBetween", "RetentionBetween"))


# --- a table in memory, to count with ---------------------------------------------------------------------------------
Row = tuple[str, int]  # batch id, number of the row


@dataclass(frozen=True)
class State:
    """Of one snapshot. `hidden`: rows that deletion vectors hide; `masked`: of active batches, how many rows they hid."""

    files: dict[int, tuple[Row, ...]]
    active: frozenset[str]
    hidden: frozenset[Row]
    masked: dict[str, int]

    def shown(self) -> dict[int, tuple[Row, ...]]:
        """The files as they are read: without what deletion vectors hide."""
        return {n: tuple(r for r in rows if r not in self.hidden) for n, rows in self.files.items()}


@dataclass
class Memory:
    """A table of files, tombstones and deletion vectors that remembers every snapshot whole."""

    files: dict[int, tuple[Row, ...]] = field(default_factory=dict)
    active: frozenset[str] = frozenset()
    purged: frozenset[str] = frozenset()  # in part at least: what an undo may not bring back
    hidden: frozenset[Row] = frozenset()
    masked: dict[str, int] = field(default_factory=dict)
    history: list[Snapshot] = field(default_factory=list)
    states: list[State] = field(default_factory=list)
    vacuumed: dict[int, frozenset[str]] = field(default_factory=dict)
    numbers: int = 0

    def commit(self, operation: str, ledger: bool = True, **keys: str) -> None:
        id = len(self.history)
        parent = id - 1 if id else None
        self.history.append(a_snapshot(id, parent, ledger=f"L{id}" if ledger else None, operation=operation, **keys))
        self.masked = {b: n for b, n in self.masked.items() if b in self.active}
        self.states.append(State(dict(self.files), self.active, self.hidden, dict(self.masked)))

    def add(self, rows: list[Row]) -> None:
        self.numbers += 1
        if rows:
            self.files[self.numbers] = tuple(rows)

    def append(self, batches: str, ledger: bool) -> None:
        self.numbers += 1
        self.add([(b, self.numbers * 100 + n) for n, b in enumerate(batches)])
        self.commit("append", ledger, **({"tombstone__metrics__deleted__count": "0"} if ledger else {}))

    def revert(self, batches: str) -> None:
        self.active |= frozenset(batches)
        self.commit("append", tombstone__metrics__deleted__count="0")

    def mask(self, batches: str, drop: bool = False, bring: str = "") -> None:
        """Take batches back by deletes by position too, and files of nothing else whole. `bring`: a replacement in the same
        commit."""
        ids = frozenset(batches)
        self.active |= ids
        self.vacuumed[len(self.history)] = ids
        self.masked |= {b: len(self.rows_of(b)) for b in ids}
        for n, rows in list(self.files.items()) if drop else ():
            if {b for b, _ in rows} <= ids:
                del self.files[n]
                self.purged |= {b for b, _ in rows}
        self.hidden |= {r for rows in self.files.values() for r in rows if r[0] in ids}
        self.numbers += 1
        self.add([(b, self.numbers * 100) for b in bring if b not in self.active])
        keys = {"lethe__deletes": BY_POSITION[len(self.history) % 2], "tombstone__vacuum__file": "v"}
        self.commit("delete", tombstone__metrics__deleted__count="0", **keys)

    def rows_of(self, batch: str) -> list[Row]:
        return [r for rows in self.files.values() for r in rows if r[0] == batch]

    def undo(self, batch: str) -> None:
        if batch not in self.active or batch in self.purged:
            return
        keys: dict[str, str] = {}
        if batch in self.masked:
            if len(self.rows_of(batch)) != self.masked[batch]:
                return  # refused
            self.hidden -= set(self.rows_of(batch))
            keys["lethe__deletes"] = BY_POSITION[len(self.history) % 2]
        self.active -= {batch}
        self.commit("overwrite" if keys else "append", tombstone__metrics__deleted__count="1", **keys)

    def compact(self) -> None:
        rows = [r for f in self.files.values() for r in f if r not in self.hidden]
        self.files.clear()
        self.add(rows)
        self.commit("replace", ledger=False)

    def vacuum(self, chosen: str, only: int | None) -> None:
        """Of the chosen batches, in all files that hold them or only in one."""
        ids = self.active & frozenset(chosen)
        touched = [n for n, rows in self.files.items() if any(b in ids for b, _ in rows)]
        touched = touched if only is None else touched[only : only + 1]
        applied = frozenset(b for n in touched for b, _ in self.files[n] if b in ids)
        survivors = [r for n in touched for r in self.files.pop(n) if r[0] not in ids and r not in self.hidden]
        self.add(survivors)
        still = frozenset(b for rows in self.files.values() for b, _ in rows)
        self.purged |= applied
        gone = ids - still
        self.active -= gone
        self.purged -= gone
        self.vacuumed[len(self.history)] = applied
        count = str(len(gone))
        self.commit("replace", tombstone__vacuum__file="v", tombstone__metrics__deleted__count=count)

    def visible(self, at: int) -> Counter[Row]:
        state = self.states[at]
        return Counter(r for rows in state.shown().values() for r in rows if r[0] not in state.active)

    def read(self, wanted: Rows) -> Counter[Row]:
        at = wanted.snapshot_id
        now, before = self.states[at].shown(), self.states[at - 1].shown() if at else {}
        files = {
            SnapshotFiles.LIVE: now,
            SnapshotFiles.ADDED: {n: f for n, f in now.items() if n not in before},
            SnapshotFiles.REMOVED: {n: f for n, f in before.items() if n not in now},
        }[wanted.files]
        return Counter(r for rows in files.values() for r in rows if (r[0] in wanted.ids) is wanted.of_ids)

    def check(self, since: int, until: int) -> None:
        within = plan_range({s.id: s for s in self.history}, since, until)
        first, last = self.states[since], self.states[until]
        lifted = {m: self.states[p].masked.keys() - self.states[m].active for m, p in within.position_changes.items()}
        ids = Tombstoned(
            first.active,
            last.active,
            {v: self.vacuumed[v] for v in within.vacuums},
            {m: self.vacuumed.get(m, frozenset()) for m in within.position_changes},
            {m: frozenset(up) for m, up in lifted.items() if up},
            frozenset(first.masked),
        )
        came, went = appended(within, ids), deleted(within, ids)
        plus = sum((self.read(r) for r in came), Counter())
        minus = sum((self.read(r) for r in went), Counter())
        assert self.visible(until) + minus == self.visible(since) + plus, (since, until, plus, minus)
        if not within.undoes:
            assert all(r.files is SnapshotFiles.ADDED for r in came)
        # Readers group files by what is read of them: that must be hashable, whatever sets it was made from.
        assert all(hash(r) == hash(r) for r in (*came, *went))


STORIES = {
    "appended and reverted within the range": ["append AB", "revert A"],
    "reverted before, purged within": ["append AB", "revert A", "vacuum A"],
    "reverted and purged within": ["append AB", "vacuum B", "revert A", "vacuum A"],
    "purged in part, then whole": ["append AB", "append AB", "revert A", "vacuum-one A", "vacuum A"],
    "undone": ["append AB", "revert A", "undo A"],
    "undone and reverted again": ["append AB", "revert A", "undo A", "revert A"],
    "late rows of a tombstoned batch": ["append AB", "revert A", "foreign A", "vacuum A"],
    "late rows after the purge, armed again": [
        "append AB",
        "revert A",
        "vacuum A",
        "foreign A",
        "revert A",
        "vacuum A",
    ],
    "compacted by another between revert and purge": ["append AB", "revert A", "compact", "vacuum A"],
    "masked": ["append AB", "append A", "mask A"],
    "masked and dropped": ["append AB", "append A", "mask-drop A", "vacuum A"],
    "dropped whole, and the tombstone purged without a file": ["append A", "revert A", "mask-drop A", "vacuum A"],
    "masked and undone": ["append AB", "mask A", "undo A"],
    "masked twice": ["append AB", "mask A", "undo A", "mask A", "undo A", "mask A"],
    "masked, undone, and reverted in the ledger alone": ["append AB", "mask A", "undo A", "revert A"],
    "reverted, then masked, then undone": ["append AB", "revert A", "mask A", "undo A"],
    "masked before and purged": ["append AB", "mask A", "vacuum A"],
    "masked, and late rows masked again": ["append AB", "mask A", "foreign A", "mask A", "vacuum A"],
    "masked before it came, masked again, undone": ["mask A", "append A", "mask A", "undo A", "append B"],
    "masked beside another that is undone": ["append AB", "mask A", "mask B", "undo A", "vacuum B"],
    "masked, then compacted by another": ["append AB", "mask A", "compact", "undo A"],
    "masked, late rows, then compacted by another": ["append AB", "mask A", "foreign A", "compact", "vacuum A"],
    "masked and undone, compacted by another": ["append AB", "mask A", "undo A", "compact", "mask A", "compact"],
    "replaced": ["append AB", "replay A", "mask C", "undo C"],
    "compacted, then undone": ["append AB", "foreign A", "revert A", "compact", "undo A", "compact"],
}


def play(story: list[str]) -> Memory:
    memory = Memory()
    memory.append("", ledger=True)
    for act in story:
        verb, _, batches = act.partition(" ")
        match verb:
            case "append" | "foreign":
                memory.append(batches, ledger=verb == "append")
            case "revert":
                memory.revert(batches)
            case "mask" | "mask-drop":
                memory.mask(batches, drop=verb == "mask-drop")
            case "replay":
                memory.mask(batches, drop=True, bring="C")
            case "undo":
                memory.undo(batches)
            case "compact":
                memory.compact()
            case "vacuum":
                memory.vacuum(batches, None)
            case "vacuum-one":
                memory.vacuum(batches, 0)
    return memory


@pytest.mark.parametrize("story", STORIES.values(), ids=STORIES)
def test_the_increment_makes_up_the_difference_in_every_range_of(story: list[str]) -> None:
    memory = play(story)

    for until in range(len(memory.history)):
        for since in range(until + 1):
            memory.check(since, until)


some = st.text("ABC", min_size=1, max_size=3)
verbs = st.sampled_from(
    ["append", "foreign", "revert", "undo", "vacuum", "vacuum-one", "compact", "mask", "mask-drop", "replay"]
)


@given(st.lists(st.tuples(verbs, some), max_size=10))
def test_the_increment_makes_up_the_difference_whatever_happens(acts: list[tuple[str, str]]) -> None:
    memory = play([f"{verb} {batches[:1] if verb == 'undo' else batches}" for verb, batches in acts])

    for until in range(len(memory.history)):
        for since in range(until + 1):
            memory.check(since, until)


def of(id: str, *partitions: str) -> Tombstone:
    """A tombstone limited to these partitions; without any, one that may be anywhere."""
    return a_tombstone(id, meta={META_PARTITIONS: "\n".join(partitions)} if partitions else {})


def a_file_in(
    partition: str | None, lower: str | None = "A", upper: str | None = "C", nulls: int | None = 0
) -> FileBounds:
    return replace(a_file(lower, upper, nulls=nulls), partition=partition)


WHERE = {
    "its own partition": (a_file_in("0/[1]"), [of("B", "0/[1]")], "filtered"),
    "one of its partitions": (a_file_in("0/[1]"), [of("B", "0/[0]", "0/[1]")], "filtered"),
    "another partition": (a_file_in("0/[1]"), [of("B", "0/[2]")], "plain"),
    "anywhere": (a_file_in("0/[1]"), [of("B")], "filtered"),
    "anywhere, among others that are elsewhere": (a_file_in("0/[1]"), [of("A", "0/[2]"), of("B")], "filtered"),
    "a partition of another spec, which may have been rewritten": (a_file_in("1/[1]"), [of("B", "0/[2]")], "filtered"),
    "one partition of its own spec and one of another": (a_file_in("1/[1]"), [of("B", "1/[2]", "0/[2]")], "filtered"),
    "a file without a sure partition": (a_file_in(None), [of("B", "0/[2]")], "filtered"),
    "its partition but not its bounds": (a_file_in("0/[1]"), [of("D", "0/[1]")], "plain"),
    "out of bounds in its partition, in bounds in another": (
        a_file_in("0/[1]"),
        [of("D", "0/[1]"), of("B", "0/[2]")],
        "plain",
    ),
    "nothing else": (a_file_in("0/[1]", "B", "B"), [of("B", "0/[1]")], "skipped"),
    "nothing else, though nobody remembers it here": (a_file_in("0/[1]", "B", "B"), [of("B", "0/[2]")], "skipped"),
    "nothing else but rows without a batch": (a_file_in("0/[1]", "B", "B", nulls=1), [of("B")], "filtered"),
    "an unpartitioned table": (a_file_in("0/[]"), [of("B", "0/[]")], "filtered"),
    "no tombstones": (a_file_in("0/[1]"), [], "plain"),
}


@pytest.mark.parametrize(("file", "tombstones", "wanted"), WHERE.values(), ids=WHERE)
def test_what_a_read_does_with_a_file(file: FileBounds, tombstones: list[Tombstone], wanted: str) -> None:
    plan = plan_read([file], tombstones)

    assert {wanted} == {k for k in ("plain", "filtered", "skipped") if getattr(plan, k)}


def test_what_another_writer_added_is_never_ruled_out_by_its_partition() -> None:
    """Rows of an old batch may have come into any partition; nobody remembers them there."""
    ours, theirs = a_file_in("0/[1]"), replace(a_file_in("0/[1]"), path="theirs")
    elsewhere = [of("B", "0/[2]")]

    some = plan_read(unsure_of([ours, theirs], {"theirs"}), elsewhere)
    unknown = plan_read(unsure_of([ours, theirs], None), elsewhere)

    assert ([f.path for f in some.plain], [f.path for f in some.filtered]) == ([ours.path], ["theirs"])
    assert not unknown.plain


def test_the_ground_that_files_cover_is_few_intervals() -> None:
    files = [a_file("D", "F"), a_file("A", "B"), a_file("E", "G"), a_file("X", "X")]

    assert covered_by(files) == (("A", "B"), ("D", "G"), ("X", "X"))
    assert covered_by([*files, FileBounds("f", 1, 1, None, None, None)]) == ((None, None),)
    assert covered_by([]) == ()


def test_skipped_files_side_by_side_are_one_run() -> None:
    """As long as no file that is read might hold an id in between; the largest come first."""
    skipped = [
        a_file(i, path=f"{i}{n}", size=10) for i, n in (("B", 1), ("B", 2), ("D", 1), ("F", 1), ("H", 1), ("K", 1))
    ]
    others = [a_file("A"), a_file("E"), a_file("K", "M")]

    plan = plan_read([*skipped, *others], [of(i) for i in "BCDFGHK"])

    assert skipped_ranges(plan, 9) == (
        SkippedRange("B", "D", 30),
        SkippedRange("F", "H", 20),
        SkippedRange("K", "K", 10),
    )
    assert skipped_ranges(plan, 1) == (SkippedRange("B", "D", 30),)
    assert skipped_ranges(plan_read([*skipped, FileBounds("f", 1, 1, None, None, None)], [of("B"), of("D")]), 9) == (
        SkippedRange("B", "B", 20),
        SkippedRange("D", "D", 10),
    )
