"""Measure how the SCAN of a vacuum grows with files and tombstones, on tables without data files. I/O.

Iceberg and Lethe make real manifests and ledgers for data files that do not exist. Each SCAN runs in its own process
(`bench.one_scan`).
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from typing import Any, Final

from lethe.ledger.ledger import Delta
from lethe.ledger.tombstone import META_RESTATEMENTS, META_RUN, Tombstone
from lethe_spark.jvm.commit import LedgerOnly, Register
from lethe_spark.jvm.data_files import data_files

from bench.lake import Lake, commit, our_properties
from bench.machine import ROOT
from bench.scales import BATCH_COLUMN
from bench.timing import Case, Sample, in_turns, say
from bench.vacuum_scales import VacuumScale

MONTHS: Final = 10
PER_FILE: Final = 1_000  # ids that lie between the bounds of a file of a sorted table
SIZE: Final = 128 * 1024 * 1024
AT_ONCE: Final = 20_000


def measure(lake: Lake, scale: VacuumScale) -> dict[str, Any]:
    """All sizes in turns, of sorted and of unsorted tables."""
    memory: dict[str, int] = {}
    planned: dict[str, int] = {}

    def act(metadata: str, _: int) -> Sample:
        found = in_a_process(metadata)
        memory[metadata] = max(found["peak_bytes"], memory.get(metadata, 0))
        planned[metadata] = found["files"]
        return Sample(found["seconds"])

    cases: list[Case] = []
    places: list[str] = []
    for ordered in (True, False):
        for files in scale.files:
            for tombstones in scale.tombstones:
                places.append(simulated(lake, files, tombstones, ordered))
                labels = {"files": files, "tombstones": tombstones, "sorted": ordered}
                cases.append(Case(labels, partial(act, places[-1]), scale.scan_rounds, warm_up=False))
    results = in_turns(cases)
    for r, place in zip(results, places, strict=True):
        if place in memory:
            r |= {"peak_bytes": memory[place], "planned_files": planned[place]}
    return {"results": results}


def simulated(lake: Lake, files: int, tombstones: int, ordered: bool) -> str:
    """The metadata file of a table with this many data files and active tombstones. In an unsorted table each file may hold any
    batch of its month. The tombstones have equal distances."""
    name = f"run.scan_{files}_{tombstones}_{'sorted' if ordered else 'unsorted'}_{os.getpid()}"
    say(f"{name}: writing metadata")
    table = lake.create(name, ordered=ordered, properties=our_properties())
    field_id = table.field_id(BATCH_COLUMN)
    assert field_id is not None
    documents = _documents(files, ordered, field_id)
    while chunk := list(islice(documents, AT_ONCE)):
        commit(lake, table, Register(data_files(table, chunk)), Delta)
    added = datetime(2026, 1, 1, tzinfo=UTC)
    ids = [batch_id(n * files * PER_FILE // tombstones) for n in range(tombstones)]

    def delta(run: str) -> Delta:
        meta = {META_RESTATEMENTS: f"bench/revert/{run}", META_RUN: run}
        return Delta(run, add_tombstones=tuple(Tombstone(i, field_id, added, None, meta) for i in ids))

    commit(lake, table, LedgerOnly(), delta)
    return str(table.metadata_location)


def _documents(files: int, ordered: bool, field_id: int) -> Iterator[str]:
    of_month = -(-files // MONTHS)
    for n in range(files):
        month = n // of_month
        first, last = (n, n + 1) if ordered else (month * of_month, min(files, (month + 1) * of_month))
        bounds = (batch_id(first * PER_FILE), batch_id(last * PER_FILE - 1))
        lower, upper = ({"keys": [field_id], "values": [b.encode().hex().upper()]} for b in bounds)
        yield json.dumps(
            {
                "spec-id": 0,
                "content": "data",
                "file-path": f"file:/nowhere/data/{n % 100:02d}/month={month + 1}/{n:08d}-{'0' * 32}.parquet",
                "file-format": "parquet",
                "partition": [month + 1],
                "file-size-in-bytes": SIZE,
                "record-count": 1_000_000,
                "null-value-counts": {"keys": [field_id], "values": [0]},
                "lower-bounds": lower,
                "upper-bounds": upper,
            }
        )


def batch_id(number: int) -> str:
    """Of the batch with this number, in their order."""
    return f"flights-2013.{number:012d}"


def in_a_process(metadata: str) -> dict[str, Any]:
    """The SCAN of a table in a process of its own: seconds, and bytes at its peak. Raises: RuntimeError."""
    done = subprocess.run(
        [sys.executable, "-m", "bench.one_scan", metadata], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stderr.strip().splitlines()[-1] if done.stderr.strip() else "the process died")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found
