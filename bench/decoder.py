"""What decoders cost: small files are consolidated by this checkout and an older one. `python -m bench.decoder FOLDER [FILES]`.

FOLDER is a checkout without decoders: `git worktree add FOLDER 9b47d211`. Prints for each format the processor time for each
file, as the median of all rounds, and the median of the ratios of each round.

Each checkout has one process with a Spark session. The time is that of all processes below it.
"""

import gc
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from importlib import import_module
from io import BytesIO
from pathlib import Path
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq
from lethe.contract.run import BufferRef, TableRef
from lethe.contract.settings import FileFormat
from lethe_spark.apps.session import make_session
from lethe_spark.run.launching import class_path, jar_folders

from tests.spark.conftest import SPARK_CONFS
from tests.support.lake import CATALOG, Lake

FILES: Final = 400
"""Files of a consolidation, unless the command names another number."""
BATCHES, ROWS = 20, 275
ROUNDS, ROUNDS_TO_WARM_UP = 9, 3
FORMATS: Final = (FileFormat.PARQUET, FileFormat.JSON, FileFormat.CSV, FileFormat.AVRO)
NAMES: Final = ("carrier", "origin", "dest", "tail")
COLUMNS: Final = (
    "id bigint, carrier string, origin string, dest string, tail string, dep bigint, arr bigint, miles double"
)
Story: Any = import_module("tests.spark.support.story").Story  # has no complete types
_AVRO: Final = {"int64": "long", "string": "string", "double": "double"}


def rows(seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    numbers = chance.integers(0, 1000, ROWS)
    texts = {name: [f"{name[0]}{n % 101}" for n in numbers] for name in NAMES}
    times = pa.array(numbers * 1_000_000, pa.timestamp("us", "UTC"))
    return pa.table({"id": numbers, **texts, "dep": numbers, "arr": numbers, "miles": chance.random(ROWS), "at": times})


def write(format_: FileFormat, table: pa.Table) -> bytes:
    out = BytesIO()
    match format_:
        case FileFormat.PARQUET:
            pq.write_table(table, out)
        case FileFormat.JSON:
            out.write(
                "".join(json.dumps(r, default=lambda at: at.isoformat()) + "\n" for r in table.to_pylist()).encode()
            )
        case FileFormat.CSV:
            pa_csv.write_csv(table, out, pa_csv.WriteOptions(quoting_style="needed"))
        case _:
            fields = [{"name": f.name, "type": _AVRO[str(f.type)]} for f in table.schema.remove(len(table.schema) - 1)]
            at = {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}}
            schema: dict[str, Any] = {"type": "record", "name": "row", "fields": [*fields, at]}
            fastavro.writer(out, schema, table.to_pylist())
    return out.getvalue()


def fill(folder: Path, format_: FileFormat, files: int) -> None:
    """Write the batches."""
    for n in range(files):
        batch = folder / f"batch_id=b{n % BATCHES:03d}"
        batch.mkdir(parents=True, exist_ok=True)
        (batch / f"part-{n}.{format_}").write_bytes(write(format_, rows(n)))
        (batch / "_SUCCESS").touch()


def processor_time() -> float:
    """Seconds of this process and all processes below it, also of those that have ended."""
    times: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        times[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family: set[int] = set()
    more = {os.getpid()}
    while more - family:
        family |= more
        more = {pid for pid, (parent, _) in times.items() if parent in family}
    return sum(times[pid][1] for pid in family)


def consolidate(home: Path, files: int) -> None:
    """Consolidate each folder that stdin names into a new table, and say the milliseconds for each file.

    This is the process of a checkout: what it calls must be in both.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # for what Spark prints
    home.mkdir()
    os.environ["PYICEBERG_HOME"] = str(home)
    lake = Lake.make(home)
    _ = lake.catalog  # is created when it is first asked for
    path = os.pathsep.join(class_path([*jar_folders(os.environ)]))
    spark = make_session(CATALOG, {**SPARK_CONFS, "spark.driver.extraClassPath": path})
    create = {"schema": f"{COLUMNS}, at timestamp, batch_id string"}
    for line in sys.stdin:
        folder = Path(line.strip())
        story = Story.begin(spark, lake, ())
        shutil.copytree(folder, story.buffer.path)
        ids = sorted(p.name.removeprefix("batch_id=") for p in folder.iterdir())
        buffer = BufferRef(uri=story.buffer.uri, format=FileFormat(folder.name))
        table = TableRef.model_validate({"catalog": CATALOG, "name": story.name, "create": create})
        spec = story.consolidation(*ids, buffer=buffer).model_copy(update={"table": table})
        gc.collect()
        before = processor_time()
        result = story.run(spec)
        time.sleep(0.3)  # until decoders have ended
        spent = processor_time() - before
        assert result.rows_added == files * ROWS, result
        print(spent / files * 1000, file=answers, flush=True)
    os._exit(0)


def main(checkouts: list[Path], files: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        for format_ in FORMATS:
            fill(Path(folder) / format_, format_, files)
        processes: list[Any] = []
        for n, checkout in enumerate(checkouts):
            paths = os.pathsep.join(str(checkout / part) for part in ("operator", "spark_apps", ""))
            command = [sys.executable, "-P", __file__, "--home", f"{folder}/home{n}", str(files)]
            environ = {**os.environ, "PYTHONPATH": paths}
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, cwd=checkout, env=environ, stdin=pipe, stdout=pipe, text=True))
        found: dict[FileFormat, list[list[float]]] = {f: [] for f in FORMATS}
        for number in range(ROUNDS_TO_WARM_UP + ROUNDS):
            for format_, rounds in found.items():
                spent = [0.0] * len(processes)
                for n in random.sample(range(len(processes)), len(processes)):
                    print(Path(folder) / format_, file=processes[n].stdin, flush=True)
                    spent[n] = float(processes[n].stdout.readline())
                if number >= ROUNDS_TO_WARM_UP:
                    rounds.append(spent)
                    report(format_, rounds)
        for process in processes:
            process.communicate()


def report(format_: FileFormat, rounds: list[list[float]]) -> None:
    """Print the figures so far."""
    here, before = (statistics.median(r[n] for r in rounds) for n in (0, 1))
    ratio = statistics.median(r[0] / r[1] for r in rounds)
    print(
        f"{format_}, {len(rounds)} rounds: {before:.2f} ms a file before, {here:.2f} ms here, ratio {ratio:.2f}",
        flush=True,
    )


if __name__ == "__main__":
    if sys.argv[1] == "--home":
        consolidate(Path(sys.argv[2]), int(sys.argv[3]))
    else:
        main([Path.cwd(), Path(sys.argv[1])], int(sys.argv[2]) if len(sys.argv) > 2 else FILES)
