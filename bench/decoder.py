"""What decoders cost: reading many small files with them, and with the same code in this process. `python -m bench.decoder`.

Prints the processor time for each file, of all processes, as the median of rounds in turn.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, Final, cast

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from lethe.contract.settings import FileFormat
from lethe.decoder.child import ChildLink
from lethe.decoder.limits import Limits
from lethe.ingest.buffer_files import FileWork, Reader, ReadSettings, _Decoding, decoded_rows
from lethe.ingest.buffer_store import BufferedFiles, Bytes, FileTask

FILES, ROWS, ROUNDS = 1000, 275, 10
NAMES: Final = ("carrier", "origin", "dest", "tail")


def rows(seed: int) -> pa.Table:
    chance = np.random.default_rng(seed)
    numbers = chance.integers(0, 1000, ROWS)
    texts = {name: [f"{name[0]}{n % 101}" for n in numbers] for name in NAMES}
    times = pa.array(numbers * 1_000_000, pa.timestamp("us", "UTC"))
    return pa.table({"id": numbers, **texts, "dep": numbers, "arr": numbers, "miles": chance.random(ROWS), "at": times})


def written(format_: FileFormat, table: pa.Table) -> bytes:
    if format_ is FileFormat.PARQUET:
        out = BytesIO()
        pq.write_table(table, out)
        return out.getvalue()
    return table.to_pandas().to_json(orient="records", lines=True, date_format="iso", date_unit="s").encode()


class _Here:
    """Takes the place of the link."""

    def begin(self, *_: Any) -> None: ...

    def mark(self, *_: Any) -> None: ...

    def advance(self, *_: Any) -> None: ...

    def rest(self) -> None: ...

    def send(self, document: Mapping[str, Any], contents: Sequence[memoryview] = ()) -> None:
        for content in contents[: document["tables"]]:
            decoded_rows(memoryview(content))


def here(reader: Reader, tasks: Sequence[FileTask]) -> None:
    decoding = _Decoding(FileWork(reader, Limits(), True, False), cast(ChildLink, _Here()))
    for number, (task, source) in enumerate(BufferedFiles({}).opened(tasks)):
        assert isinstance(source, Bytes)
        decoding.decode(number, task, source, 0)
    decoding.flush()


def with_decoder(reader: Reader, tasks: Sequence[FileTask]) -> None:
    for _ in reader.tables(tasks, {}):
        pass


def processor_time() -> float:
    """Seconds of this process and all processes below it, also of those that have ended."""
    times: dict[int, tuple[int, float]] = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        times[int(folder.name)] = int(fields[1]), sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    family = {os.getpid()}
    for _ in range(3):
        family |= {pid for pid, (parent, _) in times.items() if parent in family}
    return sum(times[pid][1] for pid in family)


def spent(work: Callable[[Reader, Sequence[FileTask]], None], reader: Reader, tasks: Sequence[FileTask]) -> float:
    """Milliseconds for each file."""
    before = processor_time()
    work(reader, tasks)
    time.sleep(0.2)  # until the decoder has ended
    return (processor_time() - before) / FILES * 1000


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        for format_ in (FileFormat.PARQUET, FileFormat.JSON):
            tasks = []
            for n in range(FILES):
                path = Path(folder) / f"{n}.{format_}"
                path.write_bytes(written(format_, rows(n)))
                tasks.append(FileTask(f"b{n // 10}", f"file://{path}", path.stat().st_size))
            reader = Reader(
                pa.schema([*rows(0).schema, ("batch_id", pa.string())]), ReadSettings("batch_id", {}, format_)
            )
            rounds = [(spent(here, reader, tasks), spent(with_decoder, reader, tasks)) for _ in range(ROUNDS + 1)][1:]
            alone, decoder = (statistics.median(r[n] for r in rounds) for n in (0, 1))
            print(f"{format_}: {alone:.3f} ms a file here, {decoder:.3f} ms with a decoder ({decoder / alone:.3f})")


if __name__ == "__main__":
    main()
