"""Measure purges of a table of 8 GiB in large files: Lethe's vacuum, and Iceberg's own ways, in turns.

    python -m bench.large [--scale tiny|small|full] [--only sorted,s3,unsorted] [--out docs/benchmarks]

The figures go into `docs/benchmarks/large.json`, and between two markers of `docs/benchmarks.md`. Needs 45 GB of disk at full
scale.
"""

import os
import sys

from bench import large_purges, large_report
from bench.large_scales import SCALES
from bench.suite import Suite, main

SUITE = Suite(
    name="large",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"sorted": large_purges.on_disk, "s3": large_purges.on_s3, "unsorted": large_purges.unsorted},
    scales=SCALES,
    goals=large_report.goals,
    section=large_report.section,
    draw=large_report.draw,
)

if __name__ == "__main__":
    code = main(SUITE)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive
