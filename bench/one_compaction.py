"""Make few large files out of many small ones, by one program, in a process of its own. I/O.

    python -m bench.one_compaction PROGRAM BUFFER TARGET

PROGRAM: a key of `PROGRAMS`. BUFFER: a folder as `bench.producer` fills it. TARGET: a folder for the output, or the URI of a REST
catalog, whose table `TABLE` has the small files. Only the environment of `dev/venv.sh rivals` has these programs. Prints
{"rows", "files"} of the output.
"""

import glob
import json
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

TABLE = "bench.small"
DAY, BATCH = "day", "batch_id"


def polars(buffer: str, target: str) -> tuple[int, int]:
    """All files in one plan: read, sort by day and batch, one file for each day. Without a commit."""
    import polars as pl

    rows = pl.scan_parquet(f"{buffer}/*/*.parquet", hive_partitioning=True, low_memory=False).sort(DAY, BATCH).collect()
    for (day,), part in rows.partition_by(DAY, as_dict=True, maintain_order=True).items():
        part.write_parquet(f"{target}/day-{day}.parquet", compression="zstd")
    return _found(target)


def pyarrow(buffer: str, target: str) -> tuple[int, int]:
    """File after file, then as `polars`."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    parts = []
    for file in glob.iglob(f"{buffer}/*/*.parquet"):
        batch = Path(file).parent.name.partition("=")[2]
        rows = pq.ParquetFile(file).read()
        parts.append(rows.append_column(BATCH, pa.repeat(pa.scalar(batch), rows.num_rows)))
    every = pa.concat_tables(parts).sort_by([(DAY, "ascending"), (BATCH, "ascending")])
    for day in pc.unique(every[DAY]).to_pylist():
        pq.write_table(every.filter(pc.field(DAY) == day), f"{target}/day-{day}.parquet", compression="zstd")
    return _found(target)


def duckdb(buffer: str, target: str) -> tuple[int, int]:
    """As `polars`, in SQL."""
    connection: Any = import_module("duckdb").connect()
    connection.execute(
        f"COPY (SELECT * FROM read_parquet('{buffer}/*/*.parquet', hive_partitioning = true) ORDER BY {DAY}, {BATCH}) "
        f"TO '{target}/days' (FORMAT parquet, PARTITION_BY ({DAY}), COMPRESSION zstd)"
    )
    return _found(target)


def ducklake_register(buffer: str, target: str) -> tuple[int, int]:
    """The small files become files of a table, as they are."""
    connection = _ducklake(target)
    connection.execute(f"CREATE TABLE lake.small AS SELECT * FROM read_parquet('{buffer}/*/*.parquet') LIMIT 0")
    connection.execute(
        f"CALL ducklake_add_data_files('lake', 'small', '{buffer}/*/*.parquet', ignore_extra_columns => true)"
    )
    return _of_ducklake(connection)


def ducklake_merge(_: str, target: str) -> tuple[int, int]:
    """They are merged, unsorted, and the merge is committed."""
    connection = _ducklake(target)
    connection.execute("CALL ducklake_merge_adjacent_files('lake')")
    return _of_ducklake(connection)


def zamboni(_: str, target: str) -> tuple[int, int]:
    """A table of Iceberg: DuckDB reads and writes, PyIceberg commits, unsorted."""
    from subprocess import run

    zamboni = str(Path(sys.executable).parent / "zamboni")
    options = ["--uri", target, "--warehouse", "bench", "--rewrite-all", "--yes"]
    done = run([zamboni, "compact", TABLE, *options], check=False, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(done.stdout[-300:] + done.stderr[-300:])
    return _of_iceberg(target)


def iceberg_compaction(_: str, target: str) -> tuple[int, int]:
    """A table of Iceberg, by DataFusion, unsorted."""
    library: Any = import_module("iceberg_compaction")
    catalog = library.RestCatalog("bench", uri=target)
    library.Compaction(catalog, TABLE, library.CompactionConfig(strategy="full")).run()
    return _of_iceberg(target)


def _found(folder: str) -> tuple[int, int]:
    import pyarrow.parquet as pq

    files = list(Path(folder).rglob("*.parquet"))
    return sum(pq.read_metadata(f).num_rows for f in files), len(files)


def _ducklake(folder: str) -> Any:
    connection: Any = import_module("duckdb").connect()
    package = import_module("duckdb_extension_ducklake").__path__[0]
    (file,) = Path(package).rglob("*.duckdb_extension")
    connection.execute(f"FORCE INSTALL '{file}'")
    connection.execute("LOAD ducklake")
    connection.execute(f"ATTACH 'ducklake:{folder}/lake.ducklake' AS lake (DATA_PATH '{folder}/data/')")
    return connection


def _of_ducklake(connection: Any) -> tuple[int, int]:
    ((rows,),) = connection.execute("SELECT count(*) FROM lake.small").fetchall()
    ((files,),) = connection.execute("SELECT count(*) FROM ducklake_list_files('lake', 'small')").fetchall()
    return rows, files


def _of_iceberg(uri: str) -> tuple[int, int]:
    from pyiceberg.catalog import load_catalog

    head = load_catalog("bench", type="rest", uri=uri).load_table(TABLE).current_snapshot()
    assert head is not None
    assert head.summary is not None
    return int(head.summary["total-records"] or 0), int(head.summary["total-data-files"] or 0)


PROGRAMS: dict[str, Callable[[str, str], tuple[int, int]]] = {
    "polars": polars,
    "pyarrow": pyarrow,
    "duckdb": duckdb,
    "ducklake-register": ducklake_register,
    "ducklake-merge": ducklake_merge,
    "zamboni": zamboni,
    "iceberg-compaction": iceberg_compaction,
}

if __name__ == "__main__":
    rows, files = PROGRAMS[sys.argv[1]](sys.argv[2], sys.argv[3])
    print(json.dumps({"rows": rows, "files": files}))
