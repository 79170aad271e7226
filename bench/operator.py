"""Measure the operator: thousands of Datasets, idle and busy, and how long users wait.

python -m bench.operator [--scale tiny|small|medium|full] [--only creation,idle,…] [--out docs/benchmarks]

Needs a cluster with Lethe and the exports of its services: `make bench-operator` sets up one of its own.
"""

import os
import sys

from bench import (
    operator_consolidation,
    operator_launches,
    operator_plots,
    operator_report,
    operator_restatements,
    operator_rows,
)
from bench.operator_scales import SCALES
from bench.operator_site import place
from bench.suite import Suite, main

SUITE = Suite(
    name="operator",
    purpose=(__doc__ or "").splitlines()[0],
    # First what needs an empty namespace. `creation` makes the Datasets for the parts after it.
    parts={
        "warm": operator_restatements.warm,
        "thrown": operator_restatements.thrown,
        "vacuum": operator_restatements.vacuum,
        "steady": operator_restatements.steady,
        "consolidation": operator_consolidation.consolidation,
        "creation": operator_rows.creation,
        "idle": operator_rows.idle,
        "reverts": operator_rows.reverts,
        "launches": operator_launches.launches,
        "failover": operator_rows.failover,
        "consecutive": operator_restatements.consecutive,
    },
    scales=SCALES,
    goals=operator_report.goals,
    section=operator_report.section,
    draw=operator_plots.draw,
    place=place,
)

if __name__ == "__main__":
    code = main(SUITE)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive
