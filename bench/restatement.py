"""Measure restatements: in a session compared with SQL, in thousands of commits, and on a cluster by the operator.

python -m bench.restatement [--scale tiny|small|full] [--only sql,commits,thrown,steady,alone] [--out docs/benchmarks]

The last three need a cluster with Lethe (`make up install`) and the exports of `make env`.
"""

import os
import sys

from bench import on_cluster, restatement_plots, restatement_report, sdk_reverts
from bench.restatement_scales import SCALES
from bench.suite import Suite, main

SUITE = Suite(
    name="restatement",
    purpose=(__doc__ or "").splitlines()[0],
    # The session ends where the cluster begins: what needs one comes first.
    parts={
        "sql": sdk_reverts.sql,
        "commits": sdk_reverts.commits,
        "thrown": on_cluster.thrown,
        "steady": on_cluster.steady,
        "alone": on_cluster.alone,
    },
    scales=SCALES,
    goals=restatement_report.goals,
    section=restatement_report.section,
    draw=restatement_plots.draw,
)

if __name__ == "__main__":
    code = main(SUITE)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive
