"""Measure vacuums: purges compared with their rivals, SCAN at scale, and reads before and after.

    python -m bench.vacuum [--scale tiny|small|full] [--only purges,scan,reads] [--out docs/benchmarks]

The figures go into `docs/benchmarks/vacuum.json`, and between two markers of `docs/benchmarks.md`.
"""

import os
import sys

from bench import vacuum_plots, vacuum_purges, vacuum_report, vacuum_scan
from bench.suite import Suite, main
from bench.vacuum_scales import SCALES

SUITE = Suite(
    name="vacuum",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "purges-sorted": lambda lake, scale: vacuum_purges.measure(
            lake, scale.table, scale.deleted, scale.purge_rounds, ordered=True
        ),
        "purges-unsorted": lambda lake, scale: vacuum_purges.measure(
            lake, scale.table, scale.deleted, scale.purge_rounds, ordered=False
        ),
        "scan": vacuum_scan.measure,
        "reads": vacuum_purges.reads,
    },
    scales=SCALES,
    goals=vacuum_report.goals,
    section=vacuum_report.section,
    draw=vacuum_plots.draw,
)

if __name__ == "__main__":
    code = main(SUITE)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive
