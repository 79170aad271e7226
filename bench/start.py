"""How long a run takes to start, and what the archive of classes saves: small consolidations as drivers of their own, in turns
with it and without it.

python -m bench.start [--rounds N]
"""

import argparse
import json
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path

from lethe_spark.run.launching import ARCHIVE, JARS_ENV, jar_folders

from bench import processes, producer
from bench.lake import configure

MEMORY = "1g"


def without_archive(home: Path, jars: Path) -> Path:
    """The same jars in another folder, without an archive."""
    folder = home / "jars"
    folder.mkdir()
    for jar in jars.glob("*.jar"):
        (folder / jar.name).symlink_to(jar)
    return folder


def measure(rounds: int, home: Path) -> dict[str, list[tuple[float, float, float]]]:
    """Of each run, by whether it had the archive: seconds to its first task, wall seconds, and the processor's seconds. The first
    round is not counted."""
    jars = Path(jar_folders(os.environ)[0])
    assert (jars / ARCHIVE).exists(), f"{jars / ARCHIVE} is not there: run `make jars`"
    configure(home)
    ways = {"with": jars, "without": without_archive(home, jars)}
    found: dict[str, list[tuple[float, float, float]]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for turn, (way, folder) in enumerate(ways.items()):
            batch = 2 * number + turn
            producer.fill(home / "buffer", batch, 1)
            os.environ[JARS_ENV] = str(folder)
            spec = processes.consolidation(f"file://{home}/buffer", f"bench.{way}", [producer.batch_id(batch)])
            events, began = home / f"events-{batch}", time.time()
            events.mkdir()
            event_log = {
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": f"file://{events}",
            }
            run = processes.carry_out(home, spec, MEMORY, event_log)
            if number:
                found[way].append((first_task(events) - began, run.seconds, sum(run.cpu_seconds.values())))
            print(f"{number}/{rounds} {way}: {run.seconds:.1f} s", file=sys.stderr, flush=True)
    return found


def first_task(events: Path) -> float:
    """When Spark started the first task, in seconds since 1970, by its own log of events."""
    lines = (
        json.loads(line)
        for file in sorted(events.rglob("*"))
        if file.is_file()
        for line in file.open()
        if line[0] == "{"
    )
    return min(e["Task Info"]["Launch Time"] for e in lines if e["Event"] == "SparkListenerTaskStart") / 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5, help="runs of each way")
    rounds = parser.parse_args().rounds
    with tempfile.TemporaryDirectory() as home:
        found = measure(rounds, Path(home))
    for index, what in enumerate(("from start to the first task", "from start to result", "of the processor")):
        medians = {way: statistics.median(run[index] for run in runs) for way, runs in found.items()}
        ratio = medians["with"] / medians["without"]
        print(f"seconds {what}: {medians['with']:.1f} with, {medians['without']:.1f} without the archive: {ratio:.2f}")


if __name__ == "__main__":
    main()
