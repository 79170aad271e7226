"""One batch on each store, through what Lethe does outside of Spark: it is claimed, listed, read, copied and deleted, beside a
table's metadata and a file that is written once."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lethe.base.errors import ConflictError
from lethe.buffer.layout import BufferedBatch
from lethe.guards.claim import Claim, Owner
from lethe.hadoop import MetadataFolder
from lethe.ingest.buffer_store import BufferedFiles, Bytes, FileTask
from lethe.ingest.shared_folders import open_buffer, read_claim, tables_around, take_claim
from lethe.storage.object_store import open_folder, read, write_once
from pyiceberg.io.pyarrow import PyArrowFileIO

from tests.support.servers.stores import Place

OWNER, OTHER = (Owner("ns", name, f"uid-{name}", f"table-{name}", "cluster") for name in ("a", "b"))


def test_a_batch_goes_through_its_buffer(place: Place) -> None:
    uri, store, properties = place.at("buffer"), place.store, place.properties
    rows = pa.table({"v": list(range(1000))})
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink)
    store.put(f"{uri}/batch_id=A%20b/part 1.parquet", sink.getvalue().to_pybytes())
    store.put(f"{uri}/batch_id=A%20b/_SUCCESS", b"")

    assert take_claim(uri, properties, OWNER, "Directory") == Claim(OWNER)
    assert take_claim(uri, properties, OTHER, "Directory") == Claim(OWNER) == read_claim(uri, properties)
    buffer = open_buffer(uri, "batch_id", properties)
    (batch,) = buffer.folders(lambda: None)
    assert isinstance(batch, BufferedBatch)
    assert (batch.id, batch.complete) == ("A b", True)
    for whole_file_bytes in (2**20, 0):  # in one request, and in ranges
        (data,) = batch.data_objects
        task = FileTask(batch.id, data.key, data.size, data.etag)
        ((_, source),) = BufferedFiles(dict(properties), whole_file_bytes).opened([task])
        assert isinstance(source, Bytes)
        assert pq.read_table(source.file) == rows
    assert store.copy(data, f"{uri}/_refused/A/part 1.parquet")
    assert [b.id for b in buffer.folders(lambda: None) if isinstance(b, BufferedBatch)] == ["A b"]
    assert buffer.delete(batch.objects) == 2
    assert list(buffer.folders(lambda: None)) == []


def test_a_table_and_a_record_are_in_the_store(place: Place) -> None:
    location, properties = place.at("lake/air/flights"), place.properties
    table = MetadataFolder(open_folder(f"{location}/metadata", properties))
    document = json.dumps({"table-uuid": "u", "location": location})
    first = table.commit(None, document)
    table.commit(first, document)

    with pytest.raises(ConflictError):
        table.commit(first, json.dumps({"table-uuid": "u", "location": location, "mine": True}))
    current = table.current()
    assert current is not None
    assert current.number == 2
    assert tables_around(f"{location}/data", properties)
    assert tables_around(place.at("buffer"), properties) == ()
    write_once(f"{location}/_erasures/r.json", b"1", PyArrowFileIO(), properties)
    assert read(f"{location}/_erasures/r.json", PyArrowFileIO(), properties) == b"1"
