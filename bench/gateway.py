"""Measure the gateway: pages and single batches of a table with a million, uploads, its memory; status events; and the inlet.

python -m bench.gateway [--scale tiny|small|full] [--only pages,uploads,events,inlet] [--out docs/benchmarks]

Needs neither Spark nor a cluster. The table is made by one commit, which takes minutes and 3 GB of memory at full scale.
"""

import sys

from bench import gateway_events, gateway_inlet, gateway_pages, gateway_report, gateway_uploads
from bench.gateway_scales import SCALES
from bench.gateway_site import place
from bench.suite import Suite, main

SUITE = Suite(
    name="gateway",
    purpose=(__doc__ or "").splitlines()[0],
    parts={
        "pages": gateway_pages.pages,
        "uploads": gateway_uploads.uploads,
        "events": gateway_events.events,
        "inlet": gateway_inlet.inlet,
    },
    scales=SCALES,
    goals=gateway_report.goals,
    section=gateway_report.section,
    draw=gateway_report.draw,
    place=place,
)

if __name__ == "__main__":
    sys.exit(main(SUITE))
