"""Measure the ledger: commits on small and large ledgers, and reverts, each compared with its rivals.

    python -m bench.ledger [--scale tiny|small|full] [--only commits,appends,reverts] [--out docs/benchmarks]

Everything is measured in one process, in turns. The result is `<out>/ledger.json`, plots beside it, and a section of
`<out>.md`. `--resume` continues an interrupted run: it keeps the parts that were complete, marked with their time.
"""

import os
import sys

from bench import appends, commits, ledger_plots, ledger_report, reverts
from bench.scales import SCALES
from bench.suite import Suite, main

SUITE = Suite(
    name="ledger",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "commits": commits.measure,
        "appends": appends.measure,
        "reverts-full": lambda lake, scale: reverts.measure(lake, scale, table="full"),
        "reverts-small": lambda lake, scale: reverts.measure(lake, scale, table="small"),
        "reverts-unsorted": lambda lake, scale: reverts.measure(lake, scale, table="unsorted"),
    },
    scales=SCALES,
    goals=ledger_report.goals,
    section=ledger_report.section,
    draw=ledger_plots.draw,
)

if __name__ == "__main__":
    code = main(SUITE)
    sys.stdout.flush()
    os._exit(code)  # not sys.exit: a callback thread of py4j must not keep a finished run alive
