"""Measure reads of tables with tombstones: by Spark, and by lethe.scan beside PyIceberg and DuckDB.

    python -m bench.reading [--scale tiny|small|full] [--only spark,engines] [--out docs/benchmarks]

The figures go into `docs/benchmarks/reading.json`, and between two markers of `docs/benchmarks.md`. The engines need
`dev/venv.sh engines`.
"""

import os
import sys

from bench import engines, reading_plots, reading_report, reads
from bench.reading_scales import SCALES
from bench.suite import Suite, main

SUITE = Suite(
    name="reading",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "spark-sorted": lambda lake, scale: reads.measure(lake, scale, ordered=True),
        "spark-unsorted": lambda lake, scale: reads.measure(lake, scale, ordered=False),
        "engines": engines.measure,
    },
    scales=SCALES,
    goals=reading_report.goals,
    section=reading_report.section,
    draw=reading_plots.draw,
)

if __name__ == "__main__":
    code = main(SUITE)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive
