"""One SCAN of a vacuum in its own process without a JVM, to measure the memory of the SCAN. I/O.

python -m bench.one_scan <metadata file>
"""

import json
import resource
import sys
import time
from typing import Any

from lethe import ledger_store
from lethe.contract.run import VacuumSpec
from lethe.iceberg.facts import observe
from lethe.uri import as_file_uri
from lethe_spark.commit.table_state import Base
from lethe_spark.jobs.vacuum.job import survey
from pyiceberg.table import StaticTable

from bench.lake import BATCH_COLUMN


def scan(metadata: str) -> dict[str, Any]:
    """One SCAN, from the metadata file to the plan, with the functions of a run."""
    StaticTable.from_metadata(as_file_uri(metadata))  # imports what reading takes
    before = _memory()
    start = time.perf_counter()
    iceberg = StaticTable.from_metadata(as_file_uri(metadata))
    facts = observe(iceberg, BATCH_COLUMN)
    assert facts.head_id is not None
    assert facts.batch_field_id is not None
    base = Base(iceberg, facts, ledger_store.load(iceberg.io, facts), facts.batch_field_id)
    found = survey(base, VacuumSpec(policy="bench/scan"))
    seconds = time.perf_counter() - start
    return {
        "seconds": seconds,
        "peak_bytes": _memory(),
        "before_bytes": before,
        "files": found.planned.whole_files + found.planned.files if found is not None else 0,
    }


def _memory() -> int:
    """The most that this process has had so far, in bytes, everything that was imported included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


if __name__ == "__main__":
    print(json.dumps(scan(sys.argv[1])))
