"""Measure what it costs to read buffered files of each format: wide rows, long strings, lists of structs. I/O.

    python -m bench.formats [--scale tiny|small|full] [--out docs/benchmarks]

Each program reads the same files into memory. Lethe also checks every value against the types of the table, and converts it; it
decodes in a process of its own, and *here* is the same without that process. Polars and DuckDB are given the types of text files,
Arrow infers them. Processor time is that of all processes and threads, for a GiB of rows in Arrow's memory.
"""

import gc
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import fastavro
import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
from lethe.contract.kubernetes import GIB, MIB
from lethe.contract.settings import FileFormat
from lethe.decoder.limits import Limits
from lethe.ingest.buffer_files import Bytes, FileOutcome, Reader, ReadSettings, fit
from lethe.ingest.buffer_store import FileTask
from lethe.ingest.schema_fit import Piece
from lethe.process import processor_seconds

from bench import timing
from bench.report import Cell, View
from bench.runner import Place, Suite, program, sizes
from bench.timing import Case, Sample, in_turns, say

LETHE, HERE = "Lethe", "Lethe, here"
BATCH: Final = "batch_id"
ITEM: Final = pa.struct([("sku", pa.string()), ("quantity", pa.int64()), ("price", pa.float64())])
_AVRO: Final = {pa.int64(): "long", pa.float64(): "double", pa.string(): "string"}
_OF_DUCKDB: Final = {pa.int64(): "BIGINT", pa.float64(): "DOUBLE", pa.string(): "VARCHAR"}


@dataclass(frozen=True)
class FormatsScale:
    """The sizes that determine how long the benchmark takes."""

    name: str
    # Of the rows of one kind of input in Arrow's memory.
    bytes: int
    # Into which the rows are written.
    files: int
    rounds: int
    driver_memory: str = ""


SCALES = sizes(FormatsScale, bytes=(MIB // 4, 8 * MIB, 64 * MIB), files=(1, 4, 8), rounds=(1, 2, 5))


# --- inputs ----------------------------------------------------------------------------------------------------------


def _ints(chance: np.random.Generator, rows: int) -> np.ndarray:
    return chance.integers(0, 1_000_000, rows)


def _texts(chance: np.random.Generator, rows: int, size: int) -> pa.Array:
    """Strings of `size` letters, of which no two are the same."""
    letters = chance.integers(ord("a"), ord("z") + 1, rows * size, np.uint8).tobytes().decode()
    return pa.array([letters[n * size : (n + 1) * size] for n in range(rows)])


def narrow(rows: int) -> pa.Table:
    chance = np.random.default_rng(1)
    numbers = {f"n{c}": _ints(chance, rows) for c in range(4)}
    return pa.table({**numbers, "d0": chance.random(rows), "d1": chance.random(rows), "s": _texts(chance, rows, 8)})


def wide(rows: int) -> pa.Table:
    chance = np.random.default_rng(2)
    kinds: Sequence[Callable[[], Any]] = (
        lambda: _ints(chance, rows),
        lambda: chance.random(rows),
        lambda: _texts(chance, rows, 8),
    )
    return pa.table({f"c{n:03d}": kinds[n % 3]() for n in range(1000)})


def long_texts(size: int, rows: int) -> pa.Table:
    chance = np.random.default_rng(3)
    return pa.table({"n": _ints(chance, rows), "s": _texts(chance, rows, size)})


def nested(rows: int) -> pa.Table:
    chance = np.random.default_rng(4)
    count = 10 * rows
    values = [_texts(chance, count, 8), pa.array(_ints(chance, count)), pa.array(chance.random(count))]
    items = pa.StructArray.from_arrays(values, fields=list(ITEM))
    return pa.table({"n": _ints(chance, rows), "items": pa.ListArray.from_arrays(np.arange(0, count + 1, 10), items)})


INPUTS: Final[Mapping[str, Callable[[int], pa.Table]]] = {
    "7 columns": narrow,
    "1,000 columns": wide,
    "strings of 1 KB": partial(long_texts, 1_000),
    "strings of 100 KB": partial(long_texts, 100_000),
    "lists of 10 structs": nested,
}
"""Each makes so many rows."""


def _avro(field: pa.Field) -> dict[str, Any]:
    of_list = [{"name": f.name, "type": ["null", _AVRO[f.type]]} for f in ITEM]
    item = {"type": "array", "items": {"type": "record", "name": "item", "fields": of_list}}
    return {"name": field.name, "type": ["null", item if pa.types.is_list(field.type) else _AVRO[field.type]]}


def write(format_: FileFormat, rows: pa.Table, file: Path) -> None:
    match format_:
        case FileFormat.PARQUET:
            pq.write_table(rows, file)
        case FileFormat.ORC:
            orc.write_table(rows, file)
        case FileFormat.CSV:
            pa_csv.write_csv(rows, file)
        case FileFormat.JSON:
            file.write_text("".join(json.dumps(row) + "\n" for row in rows.to_pylist()))
        case FileFormat.AVRO:
            schema = {"type": "record", "name": "row", "fields": [_avro(f) for f in rows.schema]}
            with file.open("wb") as out:
                fastavro.writer(out, fastavro.parse_schema(schema), rows.to_pylist(), codec="deflate")


# --- programs --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Input:
    """Files of one format with the same kind of rows."""

    folder: Path
    format: FileFormat
    schema: pa.Schema
    rows: int

    @property
    def files(self) -> list[Path]:
        return sorted(self.folder.iterdir())

    @property
    def reader(self) -> Reader:
        return Reader(self.schema.append(pa.field(BATCH, pa.string())), ReadSettings(BATCH, {}, format=self.format))

    @property
    def tasks(self) -> list[FileTask]:
        return [FileTask("b", f"file://{f}", f.stat().st_size) for f in self.files]


def by_lethe(of: Input) -> int:
    outcomes: dict[tuple[str, str], FileOutcome] = {}
    rows = sum(t.num_rows for t in of.reader.tables(of.tasks, outcomes))
    if errors := [o.error for o in outcomes.values() if o.error is not None]:
        raise RuntimeError(str(errors[0]))
    return rows


def by_lethe_here(of: Input) -> int:
    reader, rows = of.reader, 0
    for task, file in zip(of.tasks, of.files, strict=True):
        for piece in reader.rows(task, Bytes(file.read_bytes()), Limits(), []):
            outcomes = {(task.batch_id, task.uri): FileOutcome()}
            rows += sum(t.num_rows for _, t in fit(reader.fitting, [Piece(task, piece)], outcomes))
    return rows


def by_polars(of: Input) -> int:
    pl: Any = import_module("polars")
    schema = dict(pl.from_arrow(of.schema.empty_table()).schema)
    found = {
        FileFormat.PARQUET: lambda: pl.read_parquet(of.files),
        FileFormat.CSV: lambda: pl.concat(pl.read_csv(f, schema=schema) for f in of.files),
        FileFormat.JSON: lambda: pl.read_ndjson(of.files, schema=schema),
        FileFormat.AVRO: lambda: pl.concat(pl.read_avro(f) for f in of.files),
    }[of.format]()
    return int(found.height)


def by_duckdb(of: Input) -> int:
    types = ", ".join(f"'{f.name}': '{_duckdb(f.type)}'" for f in of.schema)
    call = {
        FileFormat.PARQUET: f"read_parquet('{of.folder}/*')",
        FileFormat.CSV: f"read_csv('{of.folder}/*', header = true, columns = {{{types}}})",
        FileFormat.JSON: f"read_json('{of.folder}/*', format = 'newline_delimited', columns = {{{types}}})",
    }[of.format]
    connection: Any = import_module("duckdb").connect()
    return int(connection.execute(f"SELECT * FROM {call}").to_arrow_table().num_rows)


def _duckdb(t: pa.DataType) -> str:
    if pa.types.is_list(t):
        return f"STRUCT({', '.join(f'{f.name} {_OF_DUCKDB[f.type]}' for f in ITEM)})[]"
    return _OF_DUCKDB[t]


def by_arrow(of: Input) -> int:
    """As it is read without knowing anything of a table."""
    read = {FileFormat.PARQUET: pq.read_table, FileFormat.ORC: orc.read_table, FileFormat.CSV: pa_csv.read_csv}
    return sum(read[of.format](f).num_rows for f in of.files)


PROGRAMS: Final[Mapping[str, tuple[Callable[[Input], int], tuple[FileFormat, ...]]]] = {
    LETHE: (by_lethe, tuple(FileFormat)),
    HERE: (by_lethe_here, tuple(FileFormat)),
    "Polars": (by_polars, (FileFormat.PARQUET, FileFormat.CSV, FileFormat.JSON, FileFormat.AVRO)),
    "DuckDB": (by_duckdb, (FileFormat.PARQUET, FileFormat.CSV, FileFormat.JSON)),
    "Arrow": (by_arrow, (FileFormat.PARQUET, FileFormat.ORC, FileFormat.CSV)),
}
"""How each reads files, and of which formats."""


# --- measurement -----------------------------------------------------------------------------------------------------


def inputs(work: Path, scale: FormatsScale) -> dict[str, Any]:
    """All programs in turns, for each kind of input and each format that can have it."""
    results: list[dict[str, Any]] = []
    for name, make in INPUTS.items():
        rows = make(max(scale.files, 10 * scale.bytes // make(10).nbytes))
        gib = round(rows.nbytes / GIB, 5)
        say(f"  {name}: {rows.num_rows:,} rows, {rows.nbytes / MIB:.0f} MiB")
        for format_ in FileFormat:
            if format_ is FileFormat.CSV and rows.schema.field(-1).type not in _AVRO:
                continue
            of = _written(work, name, format_, rows, scale.files)
            cases = [
                Case(
                    {"input": name, "format": str(format_), "program": by},
                    partial(_measured, read, of),
                    scale.rounds,
                )
                for by, (read, formats) in PROGRAMS.items()
                if format_ in formats
            ]
            results += [{**r, "gib": gib} for r in in_turns(cases)]
    return {"results": results}


def _written(work: Path, name: str, format_: FileFormat, rows: pa.Table, files: int) -> Input:
    folder = work / "buffer" / name.replace(" ", "-").replace(",", "") / str(format_)
    folder.mkdir(parents=True, exist_ok=True)
    share = -(-rows.num_rows // files)
    for n in range(files):
        write(format_, rows.slice(n * share, share), folder / f"part-{n}.{format_}")
    return Input(folder, format_, rows.schema, rows.num_rows)


def _measured(read: Callable[[Input], int], of: Input, _: int) -> Sample:
    gc.collect()
    began, before = time.perf_counter(), processor_seconds()
    found = read(of)
    sample = Sample(time.perf_counter() - began, cpu_seconds=processor_seconds() - before)
    if found != of.rows:
        raise RuntimeError(f"{found} rows were read, {of.rows} were written")
    return sample


@contextmanager
def place(work: Path, _: FormatsScale) -> Iterator[Place]:
    """A folder."""
    work.mkdir(parents=True, exist_ok=True)
    yield Place(work, timing.describe_host())


SUITE = Suite(
    name="formats",
    purpose=(__doc__ or "").splitlines()[0],
    parts={"inputs": inputs},
    scales=SCALES,
    views=(
        View(
            "Formats",
            ("inputs",),
            ("input", "format"),
            columns="program",
            cells=(Cell("CPU seconds for a GiB", "cpu_seconds", per="gib"),),
        ),
    ),
    place=place,
)

if __name__ == "__main__":
    program(SUITE)
