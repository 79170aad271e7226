"""Seconds from an entry in the committer's mailbox to the result of a registering run, and the memory of its processes. I/O.

`python -m bench.committer` prints a line for each size. Each file is a batch of its own, as in `bench.consolidation`, and
the files of earlier rounds stay in the buffer. The committer is a process with its own small JVM; the API server is the tests'.
"""

import argparse
import statistics
import tempfile
import time
import uuid
from pathlib import Path
from typing import Final

from lethe.contract.result import ConsolidationResult
from lethe.contract.run import BufferRef, ConsolidationMode, ConsolidationSpec, RunSpec, TableRef
from lethe.contract.settings import RunFamily

from bench.consolidation import TABLE, put, register
from bench.lake import CATALOG, DATASET, Lake
from bench.timing import memory_bytes
from tests.spark.support.mailbox import Process, serving
from tests.support import api_server
from tests.support import lake as of_tests
from tests.support.mailbox import Namespace

SIZES: Final = (10, 800)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each size")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory(prefix="lethe-bench-") as folder:
        home = Path(folder)
        buffer = home / "registered"
        lake = Lake.open(home / "lake", "1g")
        put(buffer, ["first"])
        register(lake, f"file://{buffer}", ["first"])  # creates and claims the table, as a Job does
        lake.spark.stop()
        account = home / "account"
        account.mkdir()
        with (
            api_server.running(account) as server,
            serving(server, of_tests.Lake(home / "lake"), home / "log") as process,
        ):
            namespace = Namespace.make(server)
            for count in SIZES:
                took = [seconds(namespace, buffer, [f"{count}.{n}.{i}" for i in range(count)]) for n in range(rounds)]
                each = f"{statistics.median(took):.1f} s (median of {rounds}, {min(took):.1f} to {max(took):.1f} s)"
                print(f"{count} files: {each}; {memory(process)}", flush=True)


def seconds(namespace: Namespace, buffer: Path, batch_ids: list[str]) -> float:
    """The time of one run. Raises: RuntimeError, if it registers fewer files."""
    put(buffer, batch_ids)
    spec = RunSpec(
        family=RunFamily.CONSOLIDATION,
        run_id=uuid.uuid4().hex,
        dataset=DATASET,
        table=TableRef(catalog=CATALOG, name=TABLE),
        batch_column="batch_id",
        buffer=BufferRef(uri=f"file://{buffer}"),
        consolidation=ConsolidationSpec(mode=ConsolidationMode.REGISTER, batch_ids=tuple(batch_ids)),
    )
    began = time.monotonic()
    result = namespace.carried_out(spec)
    took = time.monotonic() - began
    if not isinstance(result, ConsolidationResult) or result.files_added != len(batch_ids):
        raise RuntimeError(f"{len(batch_ids)} files were not registered: {result}")
    return took


def memory(process: Process) -> str:
    """The largest resident memory so far, of the process and of its JVM."""
    python, java = (memory_bytes(pid, peak=True) // 2**20 for pid in (process.process.pid, process.jvm()))
    return f"at most {python} MB, and {java} MB of its JVM"


if __name__ == "__main__":
    main()
