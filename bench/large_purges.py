"""Purge files of more than 128 MiB, by Lethe's vacuum and by Iceberg's own ways, in turns. I/O.

Of each purge the benchmark counts the bytes that were encoded and, on an S3 server, the bytes that crossed the loopback
interface: what the vacuum read from the server and wrote to it. The files that a purge made are deleted before the next one.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from pyspark.sql import functions as F  # noqa: N812

from bench.lake import Lake
from bench.large_scales import LargeScale
from bench.scales import Size
from bench.tables import base, copied
from bench.timing import Case, Sample, in_turns
from bench.vacuum_purges import COPY_ON_WRITE, REWRITE_V3, VACUUM, Purged, held_bytes, purge
from tests.support.servers import s3 as servers

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
    files = lake.spark.table(f"{lake.catalog}.{name}.files")
    count, total = files.agg(F.count("*"), F.sum("file_size_in_bytes")).collect()[0]
    table = {"rows": size.all_rows, "batches": size.all_batches, "files": count, "bytes": total, "sorted": ordered}
    return {"table": table, "results": results}
