"""What the archive of classes saves a run: small consolidations as drivers of their own, in turns with it and without it.

python -m bench.start [ROUNDS]
"""

import os
import statistics
import sys
import tempfile
from pathlib import Path

from lethe_spark.run.launching import ARCHIVE, JARS_ENV, jar_folders

from bench import drivers, producer
from bench.lake import configure

MEMORY = "1g"


def without_archive(home: Path, jars: Path) -> Path:
    """The same jars in another folder, without an archive."""
    folder = home / "jars"
    folder.mkdir()
    for jar in jars.glob("*.jar"):
        (folder / jar.name).symlink_to(jar)
    return folder


def measure(rounds: int, home: Path) -> dict[str, list[tuple[float, float]]]:
    """Wall seconds and the processor's seconds of each run, by whether it had the archive. The first round is not counted."""
    jars = Path(jar_folders(os.environ)[0])
    assert (jars / ARCHIVE).exists(), f"{jars / ARCHIVE} is not there: run `make jars`"
    configure(home)
    ways = {"with": jars, "without": without_archive(home, jars)}
    found: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for number in range(rounds + 1):
        for turn, (way, folder) in enumerate(ways.items()):
            batch = 2 * number + turn
            producer.fill(home / "buffer", batch, 1)
            os.environ[JARS_ENV] = str(folder)
            spec = drivers.consolidation(f"file://{home}/buffer", f"bench.{way}", [producer.batch_id(batch)])
            run = drivers.carry_out(home, spec, MEMORY)
            if number:
                found[way].append((run.seconds, sum(run.cpu_seconds.values())))
            print(f"{number}/{rounds} {way}: {run.seconds:.1f} s", file=sys.stderr, flush=True)
    return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 5
    with tempfile.TemporaryDirectory() as home:
        found = measure(rounds, Path(home))
    for what, index in (("from start to result", 0), ("of the processor", 1)):
        medians = {way: statistics.median(run[index] for run in runs) for way, runs in found.items()}
        ratio = medians["with"] / medians["without"]
        print(f"seconds {what}: {medians['with']:.1f} with, {medians['without']:.1f} without the archive: {ratio:.2f}")


if __name__ == "__main__":
    main()
