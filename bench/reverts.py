"""Measure reverts of batches, by Lethe and by Iceberg's own ways."""

from collections.abc import Sequence
from typing import Any

from bench import rivals
from bench.lake import Lake, files_of
from bench.rivals import Rival
from bench.scales import LedgerScale, Size
from bench.tables import base
from bench.timing import WARM_UP, Case, Sample, in_turns, say

KINDS = (
    rivals.LEDGER,
    rivals.DELETION_VECTORS,
    rivals.POSITION_DELETES,
    rivals.EQUALITY_DELETES,
    rivals.COPY_ON_WRITE,
)
UNSORTED_KINDS = (rivals.LEDGER, rivals.DELETION_VECTORS, rivals.EQUALITY_DELETES)


def measure(lake: Lake, scale: LedgerScale, *, table: str) -> dict[str, Any]:
    """Reverts of all sizes by all kinds, in turns. `table`: full, small or unsorted.

    Each revert takes other batches, evenly spread over the table. So the table of a kind accumulates the files of its earlier
    reverts, as in production.
    """
    size = {"full": scale.revert_table, "small": scale.small_table, "unsorted": scale.unsorted_table}[table]
    ordered = table != "unsorted"
    counts = scale.reverts if ordered else (scale.reverts[0], scale.reverts[-1])
    name = base(lake, size, ordered=ordered)
    source = lake.load(name)
    assert source is not None
    files = files_of(source)
    subjects: dict[str, Rival] = {}
    for kind in KINDS if ordered else UNSORTED_KINDS:
        say(f"a table for {kind}")
        subjects[kind] = rivals.a_clone(lake, name, kind, size)
    taken: dict[str, set[int]] = {kind: set() for kind in subjects}
    cases = [
        _case(scale, size, table, kind, s, taken[kind], n)
        for n in counts
        for kind, s in subjects.items()
        if not _the_same_again(scale, kind, n)
    ]
    results = in_turns(cases)
    for kind, subject in subjects.items():
        if problem := rivals.wrong(subject, size, taken[kind]):
            for r in results:
                if r["kind"] == kind:
                    r["error"] = problem
                    say(f"{kind}: {problem}")
    return {
        "table": {
            "name": table,
            "rows": size.all_rows,
            "batches": size.all_batches,
            "files": len(files),
            "bytes": sum(f.bytes for f in files),
            "sorted": ordered,
        },
        "results": results,
    }


def _case(scale: LedgerScale, size: Size, table: str, kind: str, subject: Rival, taken: set[int], count: int) -> Case:
    rewrites = kind == rivals.COPY_ON_WRITE and count > 1
    rounds = scale.rewrite_rounds if rewrites else scale.revert_rounds
    offset = scale.reverts.index(count)

    def act(number: int) -> Sample:
        indexes = _batches(size, count, offset + (number - WARM_UP) * len(scale.reverts))
        taken.update(indexes)
        return Sample(subject.delete(indexes))

    return Case({"kind": kind, "batches": count, "table": table}, act, rounds, warm_up=not rewrites)


def _the_same_again(scale: LedgerScale, kind: str, count: int) -> bool:
    """Batches in all files: copy-on-write then rewrites the whole table, for 100 batches as for 1,000."""
    return kind == rivals.COPY_ON_WRITE and 1 < count < max(scale.reverts)


def _batches(size: Size, count: int, offset: int) -> Sequence[int]:
    return size.spread(count, offset)
