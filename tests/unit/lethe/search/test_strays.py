"""What an object holds follows from its content, not from its name."""

import hashlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import LedgerError
from lethe.buffer.promotion import StageNote, WrittenBatch
from lethe.cli.content_search import SearchedColumn, UnsearchableContent, holds_batch
from lethe.contract.result import Progress
from lethe.contract.run import RunKind
from lethe.erasure.progress import Writer
from lethe.erasure.record import canonical
from lethe.erasure.strays import OTHER, UNKNOWN, StrayContent
from lethe.iceberg.facts import TableFacts
from lethe.ledger.format import BATCHES
from lethe.ledger.ledger import EMPTY, BatchEntry
from lethe.ledger.lineage import Resolution, Snapshot
from lethe.ledger.root import Root
from lethe.ledger_store import Loaded
from lethe.search.strays import (
    NO_ROWS,
    POSITIONS_OF_PARTITION,
    cherry_picked_batches,
    content_of,
    is_checksum,
    is_own,
)
from pyiceberg.io.pyarrow import PyArrowFileIO
from pyiceberg.schema import Schema
from pyiceberg.types import LongType, NestedField, StringType

from tests.support.builders import NOW, RUN, a_batch, a_run, a_run_result, an_object

FIELD = 2
SCHEMA = Schema(NestedField(1, "v", LongType()), NestedField(FIELD, "batch_id", StringType()))
TABLE = "s3://lake/t"


def parquet(*ids: str | None, field_ids: bool = True, **more: list[Any]) -> bytes:
    meta = {b"PARQUET:field_id": b"2"} if field_ids else None
    fields = [pa.field("batch_id", pa.string(), metadata=meta), *(pa.field(n, pa.int64()) for n in more)]
    sink = io.BytesIO()
    pq.write_table(pa.table([list(ids), *more.values()], schema=pa.schema(fields)), sink)
    return sink.getvalue()


def avro(*fields: Mapping[str, Any], **metadata: str) -> bytes:
    sink = io.BytesIO()
    schema = {"type": "record", "name": "r", "fields": list(fields)}
    fastavro.writer(sink, schema, [], metadata={k.replace("_", "-"): v for k, v in metadata.items()})
    return sink.getvalue()


def positions(*paths: str, statistics: bool = True) -> bytes:
    sink = io.BytesIO()
    pq.write_table(pa.table({"file_path": list(paths), "pos": [0] * len(paths)}), sink, write_statistics=statistics)
    return sink.getvalue()


def puffin(*kinds: str, of: str | None = None) -> bytes:
    more = {} if of is None else {"properties": {"referenced-data-file": of}}
    footer = json.dumps({"blobs": [{"type": k, **more} for k in kinds]}).encode()
    return b"PFA1" + b"x" * 40 + b"PFA1" + footer + len(footer).to_bytes(4, "little") + b"\0" * 4 + b"PFA1"


def an_orc_file() -> bytes:
    sink = io.BytesIO()
    orc.write_table(pa.table({"batch_id": ["A"]}), sink)
    return sink.getvalue()


def content(data: bytes, name: str = "data/f", schema: Schema | None = SCHEMA) -> StrayContent:
    return content_of(io.BytesIO(data), f"{TABLE}/{name}", FIELD, schema)


@pytest.mark.parametrize("name", ["data/f.parquet", "data/.f", "_tombstones/f.avro", "data/f.txt"])
def test_a_parquet_file_is_read_whatever_its_name(name: str) -> None:
    assert content(parquet("A", "C"), name) == StrayContent(True, "A", "C")
    assert content(parquet(), name) == NO_ROWS
    assert content(parquet("A", v=[1], field_ids=False), name) == StrayContent(True, "A", "A", by_name=True)
    assert content(parquet("A", other=[1], field_ids=False), name) == UNKNOWN
    assert content(parquet("A", field_ids=False), name, schema=None) == UNKNOWN
    assert content(parquet("A")[:-3], name) == UNKNOWN


def test_other_formats_of_data_files_are_known_by_their_first_bytes() -> None:
    batch = {"name": "b", "type": "string", "field-id": FIELD}

    assert content(an_orc_file()) == UNKNOWN
    assert content(avro(batch)) == StrayContent(of_table=True)
    assert content(avro({**batch, "field-id": 9})) == UNKNOWN
    assert content(avro(batch, format_version="2")) == UNKNOWN, "a manifest, whose fields have ids of their own"
    assert content(b"Obj\x01 and no more") == UNKNOWN
    assert content(b"not whole", "data/f.orc") == UNKNOWN


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", NO_ROWS),
        (puffin("deletion-vector-v1", "deletion-vector-v1"), NO_ROWS),
        (puffin("deletion-vector-v1", "an-index"), OTHER),
        (b"PFA1 and no more", OTHER),
        (b"PK\x03\x04", OTHER),
        (b"[" * 100_000, OTHER),
        (b"some text", OTHER),
    ],
)
def test_anything_else_is_empty_or_unknown(data: bytes, expected: StrayContent) -> None:
    assert content(data) == expected


@pytest.mark.parametrize(
    ("data", "name", "expected"),
    [
        (positions(f"{TABLE}/data/f.parquet"), "data/d.parquet", NO_ROWS),
        (positions(f"{TABLE}/data/name=x/f.parquet"), "d.parquet", POSITIONS_OF_PARTITION),
        (positions(f"{TABLE}/data/f.parquet"), "data/name=x/d.parquet", POSITIONS_OF_PARTITION),
        (positions(f"{TABLE}/data/f.parquet", statistics=False), "data/d.parquet", POSITIONS_OF_PARTITION),
        (positions(), "data/name=x/d.parquet", NO_ROWS),
        (puffin("deletion-vector-v1", of=f"{TABLE}/data/f.parquet"), "data/d.puffin", NO_ROWS),
        (puffin("deletion-vector-v1", of=f"{TABLE}/data/name=x/f.parquet"), "d.puffin", POSITIONS_OF_PARTITION),
        (puffin("deletion-vector-v1"), "data/name=x/d.puffin", POSITIONS_OF_PARTITION),
        (puffin("an-index", of=f"{TABLE}/data/name=x/f.parquet"), "data/d.puffin", OTHER),
    ],
)
def test_deletes_by_position_count_if_their_paths_have_values_of_a_partition(
    data: bytes, name: str, expected: StrayContent
) -> None:
    assert content(data, name) == expected


def own_documents() -> dict[str, bytes]:
    record = canonical(
        {
            **dict.fromkeys(("format-version", "table", "restatement", "request", "purge", "expired-snapshots"), 1),
            **dict.fromkeys(("files", "files-count", "files-bytes", "files-sha256", "verified", "not-covered"), 1),
        }
    )
    signature = dict.fromkeys(("format-version", "algorithm", "key-id", "statement", "signature"), "x")
    progress = Progress(run_id=RUN, attempt=1, phase="Writing", updated_time=NOW)
    results = {f"_runs/{k.name}.json": a_run_result(k).to_json().encode() for k in RunKind}
    return {
        f"_erasures/x-{hashlib.sha256(record).hexdigest()[:16]}.json": record,
        "_erasures/x.json.sig": canonical(signature),
        "_runs/a-1-00000000-writing.json": Writer(RUN, "s3://b", 1, frozenset("A"), 1).to_json(),
        "_runs/run.json": a_run(RunKind.CONSOLIDATION).to_json().encode(),
        "_runs/progress.json": progress.to_json().encode(),
        "_runs/a-stage-1.json": json.dumps({"batches": [], "refused": [], "missing": {}}).encode(),
        "_runs/a-stage-2.json": json.dumps({"batches": [], "refused": [], "missing": {}, "references": {}}).encode(),
        "_tombstones/1-root.json": Root("u", 1, RUN).encode(),
        "_tombstones/1-batches.avro": BATCHES.encode([a_batch("A")]).content,
        "_events/1.json": json.dumps({"format-version": 1, "table-uuid": "u", "dataset": "d"}).encode(),
        **results,
    }


@pytest.mark.parametrize("name", own_documents())
def test_what_lethe_writes_beside_a_table_is_recognized_by_its_form(name: str) -> None:
    data, folder = own_documents()[name], name.partition("/")[0]

    assert is_own(f"{TABLE}/{name}", data)
    assert content(data, name) == NO_ROWS
    assert not is_own(f"{TABLE}/data/{name.partition('/')[2]}", data)
    assert not is_own(f"{TABLE}/{folder}/x.json", b'{"name": "somebody"}')
    if data.startswith(b"{"):
        changed = json.dumps({**json.loads(data), "name": "somebody"}).encode()
        assert not is_own(f"{TABLE}/{name}", changed)


def test_a_checksum_file_has_the_size_that_its_file_requires() -> None:
    good = b"crc\0" + (512).to_bytes(4, "big") + b"1234" * 3

    assert [is_checksum(good, size) for size in (1024, 1025, 1536, 1537)] == [False, True, True, False]
    assert not is_checksum(b"crc\0 somebody", 1)
    assert not is_checksum(b"crc\0" + bytes(4), 0)


def test_a_field_with_the_path_of_the_batch_column_says_nothing_of_its_batches() -> None:
    """Parquet names a column `load.id` as it names the field `id` of a column `load`."""
    load = pa.field("load", pa.struct([pa.field("id", pa.string())]))
    batch = pa.field("load.id", pa.string(), metadata={b"PARQUET:field_id": b"2"})
    rows = [pa.array([{"id": "X"}]), pa.array(["A"])]
    sink = io.BytesIO()
    pq.write_table(pa.Table.from_arrays(rows, schema=pa.schema([load, batch])), sink)

    assert content(sink.getvalue()) == StrayContent(of_table=True)
    with pytest.raises(UnsearchableContent, match="several"):
        holds_batch(io.BytesIO(sink.getvalue()), SearchedColumn(FIELD, frozenset(["load.id"])), ["A"])


def published(folder: Path, note: bytes) -> dict[str, BatchEntry]:
    """What a copy of a staged snapshot brings in, of which the list of batches has this content."""
    (folder / "_runs").mkdir()
    (folder / "_runs" / "r-stage.json").write_bytes(note)
    stage = {"lethe.stage": f"file://{folder}/_runs/r-stage.json", "lethe.run-id": RUN, "wap.id": RUN}
    snapshots = {1: Snapshot(1, None, 1, 0, stage), 2: Snapshot(2, None, 2, 0, {"source-snapshot-id": "1"})}
    facts = TableFacts("air.flights", "uuid-1", f"file://{folder}", 2, 2, NOW, snapshots=snapshots)
    table = cast(Any, SimpleNamespace(io=PyArrowFileIO()))
    return cherry_picked_batches(table, facts, Loaded(EMPTY, Resolution(None, None, (2,))), FIELD)


def test_batches_of_a_staged_snapshot_that_another_tool_published_keep_their_reference(tmp_path: Path) -> None:
    """Otherwise a revert of what the run delivered would leave them in the table."""
    objects = (an_object("s3://lake/buffer/A/p.parquet"),)
    batches = {i: WrittenBatch(i, 3, 4, objects) for i in ("A", "B")}

    found = published(tmp_path, StageNote(batches, {}, {}, {"A": "dag/1"}).to_json())

    assert {i: (b.reference, b.rows, b.objects) for i, b in found.items()} == {
        "A": ("dag/1", 3, objects),
        "B": (None, 3, objects),
    }


@pytest.mark.parametrize("note", [b"", b"[]", b"{}", b"[" * 100_000, b'{"batches": [7], "refused": [], "missing": {}}'])
def test_a_damaged_list_of_staged_batches_is_named(tmp_path: Path, note: bytes) -> None:
    with pytest.raises(LedgerError, match=r"snapshot 1: .*/_runs/r-stage\.json is not a readable") as refused:
        published(tmp_path, note)

    assert refused.value.reason == "LedgerUnreadable"
