"""Measure the gateway: pages and single batches of a table with a million, uploads, its memory; status events; and the inlet.

    python -m bench.gateway [--scale tiny|small|full] [--only pages,uploads,events,inlet] [--out docs/benchmarks]

Needs neither Spark nor a cluster. The table is made by one commit, which takes minutes and 3 GB of memory at full scale.
"""

from collections.abc import Mapping
from typing import Final

from bench.gateway_parts import BATCH, PLAIN, UPLOAD, events, pages, uploads
from bench.gateway_site import SCALES, place
from bench.inlet import inlet
from bench.report import MIB, SECONDS, Cell, Goal, Part, View, find, goal, median, ratio, results_of
from bench.runner import Suite, program

PAGE_SECONDS: Final = 0.3
BATCH_SECONDS: Final = 0.1
MEMORY_MIB: Final = 256.0
# Nine tenths of the speed.
UPLOAD_TO_PLAIN: Final = 1.11
MILLISECONDS: Final = 0.001


def goals(parts: Mapping[str, Part]) -> list[Goal]:
    """Each goal with what was measured, None where it was not."""
    found = []
    if "pages" in parts:
        part = parts["pages"]
        listed = [median(r, "p95") for r in part["results"] if r["kind"] != BATCH]
        whole = [seconds for seconds in listed if seconds is not None]
        worst = max(whole) if len(whole) == len(listed) else None
        of = f"{part['batches']:,} batches"
        found += [
            goal(f"{of}: 95 % of the pages of 100 of the slowest kind, seconds", worst, PAGE_SECONDS),
            goal(
                f"{of}: 95 % of the answers about one batch, seconds",
                median(find(part["results"], kind=BATCH), "p95"),
                BATCH_SECONDS,
            ),
            goal(f"{of}: peak memory of the process, MiB", part["memory_mib"]["peak"], MEMORY_MIB),
        ]
    if "uploads" in parts:
        part = parts["uploads"]
        upload, plain = (median(find(results_of(parts, "uploads"), kind=kind)) for kind in (UPLOAD, PLAIN))
        size = f"{part['bytes'] / 2**30:.2g} GiB"
        found += [
            goal(
                f"a file of {size}: seconds of an upload : seconds of a plain PUT",
                ratio(upload, plain),
                UPLOAD_TO_PLAIN,
            ),
            goal("uploads: peak memory of the process, MiB", part["memory_mib"], MEMORY_MIB),
        ]
    return found


SUITE = Suite(
    name="gateway",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"pages": pages, "uploads": uploads, "events": events, "inlet": inlet},
    scales=SCALES,
    goals=goals,
    views=(
        View(
            "The index",
            ("pages",),
            ("batches",),
            cells=(
                Cell("seconds to build", "index.build_seconds"),
                Cell("MiB on disk", "index.bytes", MIB),
                Cell("seconds to show a commit", "index.refresh_seconds"),
                Cell("pages a second", "pages_per_second"),
                Cell("peak MiB of memory", "memory_mib.peak"),
            ),
            of_part=True,
        ),
        View(
            "Pages",
            ("pages",),
            ("kind",),
            cells=(Cell("median ms", unit=MILLISECONDS), Cell("95 % ms", "p95", MILLISECONDS)),
        ),
        View(
            "Uploads of one small file",
            ("uploads",),
            cells=(
                Cell("clients", "small.clients"),
                Cell("a second", "small.per_second"),
                Cell("median ms", "small.seconds", MILLISECONDS),
                Cell("ms of the gateway's CPU", "small.cpu_seconds", MILLISECONDS),
            ),
            of_part=True,
        ),
        View("Uploads of one large file", ("uploads",), ("kind",), cells=(Cell("MiB", "bytes", MIB), SECONDS)),
        View(
            "Status events",
            ("events",),
            ("kind",),
            cells=(
                Cell("commits", "commits"),
                Cell("events", "events"),
                Cell("events a second", "per_second"),
                Cell("commits a second", "commits_per_second"),
                SECONDS,
                Cell("95 % of the seconds", "seconds.p95"),
            ),
        ),
        View(
            "The inlet",
            ("inlet",),
            ("kind",),
            cells=(
                Cell("rows a second", "rows_per_second"),
                Cell("CPU seconds", "cpu_seconds"),
                Cell("peak MiB", "memory_mib"),
                Cell("files", "files"),
            ),
        ),
    ),
    place=place,
)

if __name__ == "__main__":
    program(SUITE)
