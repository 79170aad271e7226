"""Measure purges of a table of 8 GiB in large files: Lethe's vacuum, and Iceberg's own ways, in turns. I/O.

    python -m bench.large [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]

Of each purge the benchmark counts the bytes that were encoded and, on an S3 server, the bytes that crossed the loopback
interface. The files that a purge made are deleted before the next one. Needs 45 GB of disk at full scale.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from bench.lake import Lake, Size, base, copied, size_of
from bench.report import SECONDS, Cell, Goal, Part, View, find, goal, median, ratio, results_of
from bench.runner import Suite, program, sizes
from bench.timing import Case, Sample, in_turns
from bench.vacuum import COPY_ON_WRITE, REWRITE_V3, VACUUM, Purged, held_bytes, purge
from tests.support.servers import s3 as servers


@dataclass(frozen=True)
class LargeScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # The table, once sorted and once not; full: 64 files of 134 MiB.
    table: Size
    # Numbers of reverted batches of a purge, evenly spread, each with its number of rounds.
    reverts: Sequence[tuple[int, int]]
    reverts_on_s3: Sequence[tuple[int, int]]
    # Each row group of the unsorted table has rows of all batches, so the number of batches matters little.
    reverts_of_unsorted: Sequence[tuple[int, int]]
    # A copy-on-write DELETE of more batches is left out: it shuffles all rows of the files that it touches, and for those of all
    # files 41 GB of disk were not enough.
    copy_on_write_up_to: int = 10
    # Memory of the driver, as Spark takes it.
    driver_memory: str = "2g"


SCALES = sizes(
    LargeScale,
    table=(Size(1, 20, 100, 2), Size(2, 200, 50_000, 2), Size(4, 2_500, 55_000, 16)),
    reverts=(((2, 1),), ((2, 1), (4, 1)), ((10, 2), (100, 1))),
    reverts_on_s3=(((2, 1),), ((2, 1),), ((10, 1), (100, 1))),
    reverts_of_unsorted=(((2, 1),), ((2, 1),), ((10, 1),)),
    driver_memory=("768m", "2g", "4g"),
)


SORTED_WAYS: Final = (VACUUM, REWRITE_V3, COPY_ON_WRITE)
UNSORTED_WAYS: Final = (VACUUM, REWRITE_V3)
# The table that is purged in each way first.
WARM_UP: Final = Size(1, 20, 100, 2)


def on_disk(lake: Lake, scale: LargeScale) -> dict[str, Any]:
    """Purges of a sorted table in local files."""
    return _measure(lake, scale, scale.reverts, SORTED_WAYS, ordered=True)


def on_s3(lake: Lake, scale: LargeScale) -> dict[str, Any]:
    """The same on an S3 server, which runs on the same cores."""
    with servers.running() as s3:
        there = lake.on_s3(s3)
        copied(lake, there, base(lake, scale.table, ordered=True), ordered=True)
        return _measure(there, scale, scale.reverts_on_s3, SORTED_WAYS, ordered=True)


def unsorted(lake: Lake, scale: LargeScale) -> dict[str, Any]:
    """Purges of a table whose row groups all have rows of all batches, in local files."""
    return _measure(lake, scale, scale.reverts_of_unsorted, UNSORTED_WAYS, ordered=False)


def _measure(
    lake: Lake, scale: LargeScale, reverts: Sequence[tuple[int, int]], ways: Sequence[str], *, ordered: bool
) -> dict[str, Any]:
    size, name = scale.table, base(lake, scale.table, ordered=ordered)
    seen: dict[tuple[str, int], list[Purged]] = {}

    def act(way: str, count: int, _: int) -> Sample:
        done = purge(lake, name, size, way, size.spread(count))
        lake.discard(done.table)
        seen.setdefault((way, count), []).append(done)
        return Sample(done.seconds, done.bytes)

    for way in ways:  # so that the first round does not load classes
        lake.discard(purge(lake, base(lake, WARM_UP, ordered=ordered), WARM_UP, way, WARM_UP.spread(2)).table)
    results = in_turns(
        Case({"way": way, "deleted": count, "sorted": ordered}, partial(act, way, count), rounds, warm_up=False)
        for count, rounds in reverts
        for way in ways
        if way != COPY_ON_WRITE or count <= scale.copy_on_write_up_to
    )
    for r in results:
        files, size_held = held_bytes(lake, name, [size.batch_id(i) for i in size.spread(r["deleted"])])
        r |= {"held_files": files, "held_bytes": size_held}
        if found := seen.get((r["way"], r["deleted"])):
            last = found[-1]
            r |= {"files": last.files, "encoded": last.encoded, "deletes_left": last.deletes_left}
            if lake.s3 is not None:
                r["moved"] = [one.moved for one in found]
    return {"table": size_of(lake, name, size, ordered=ordered), "results": results}


FEW_BATCHES: Final = 10
# Goals for few batches, and for more. Time, compared with the rivals:
TIME_AT_MOST: Final = (0.1, 0.2)
UNSORTED_TIME_AT_MOST: Final = 0.3
# Bytes that are encoded, and that come from an S3 server or go there, of those of the files that have deleted rows:
ENCODED_AT_MOST: Final = (0.15, 0.3)
MOVED_AT_MOST: Final = (0.2, 0.35)
ENCODED: Final = Cell("encoded ÷ held", "encoded", per="held_bytes")
MOVED: Final = Cell("moved ÷ held", "moved", per="held_bytes")


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Time compared with the rivals, and what is encoded and moved of the files that have deleted rows."""
    found = []
    for name in ("sorted", "s3", "unsorted"):
        results = results_of(parts, name)
        for r in (r for r in results if r["way"] == VACUUM):
            count, more = r["deleted"], r["deleted"] > FEW_BATCHES
            for rival in (x["way"] for x in results if x["way"] != VACUUM and x["deleted"] == count):
                limit = UNSORTED_TIME_AT_MOST if name == "unsorted" else TIME_AT_MOST[more]
                quotient = ratio(median(r), median(find(results, way=rival, deleted=count)))
                found.append(goal(f"{name}: seconds of a vacuum of {count} batches ÷ {rival}", quotient, limit))
            held = f"for {count} batches ÷ bytes of the files that have them"
            if name != "unsorted":
                found.append(goal(f"{name}: bytes encoded {held}", ENCODED.value(r), ENCODED_AT_MOST[more]))
            if name == "s3":
                found.append(goal(f"{name}: bytes to and from the server {held}", MOVED.value(r), MOVED_AT_MOST[more]))
    return found


SUITE = Suite(
    name="large",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"sorted": on_disk, "s3": on_s3, "unsorted": unsorted},
    scales=SCALES,
    goals=goals,
    views=(
        View(
            "Purges of large files",
            ("sorted", "s3", "unsorted"),
            ("way",),
            "deleted",
            (SECONDS, ENCODED, MOVED),
            plot="deleted",
        ),
    ),
)

if __name__ == "__main__":
    program(SUITE)
