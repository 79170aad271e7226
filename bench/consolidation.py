"""Measure consolidation: small files per hour, growth, commits one after the other, and one commit per batch for comparison.

python -m bench.consolidation [--scale tiny|small|full] [--only PART,…] [--out docs/benchmarks]

Parts: sustained, s3, growth, register, rivals, commits.
"""

import os
import sys

from bench import consolidation_plots, consolidation_report, consolidations, many_commits, one_by_one, registration
from bench.consolidation_scales import SCALES
from bench.suite import Suite, main

SUITE = Suite(
    name="consolidation",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "sustained": consolidations.sustained,
        "s3": consolidations.on_s3,
        "growth": consolidations.growth,
        "register": registration.measure,
        "register-s3": registration.on_s3,
        "rivals": one_by_one.measure,
        "commits": many_commits.measure,
    },
    scales=SCALES,
    goals=consolidation_report.goals,
    section=consolidation_report.section,
    draw=consolidation_plots.draw,
)

if __name__ == "__main__":
    code = main(SUITE)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive
