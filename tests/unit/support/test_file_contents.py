"""Values are found in compressed and encoded files."""

import gzip
import io

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.support.file_contents import decoded

VALUE = "Ada Lovelace of Marylebone"


def as_avro() -> bytes:
    schema = {"type": "record", "name": "r", "fields": [{"name": "meta", "type": {"type": "map", "values": "bytes"}}]}
    sink = io.BytesIO()
    fastavro.writer(sink, schema, [{"meta": {"who": VALUE.encode()}}] * 50, codec="deflate")
    return sink.getvalue()


def as_parquet() -> bytes:
    sink = io.BytesIO()
    names = [f"{VALUE} {n % 7}" for n in range(1000)]
    pq.write_table(pa.table({"name": names}), sink, compression="zstd", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("m0.avro", as_avro()),
        ("data.parquet", as_parquet()),
        ("v1.gz.metadata.json", gzip.compress(VALUE.encode())),
    ],
    ids=["avro", "parquet", "json"],  # the same in each process: gzip writes the time
)
def test_a_value_is_found(name: str, content: bytes) -> None:
    assert VALUE.encode() in decoded(name, content)


def test_other_files_are_their_own_text() -> None:
    assert decoded("v1.metadata.json", VALUE.encode()) == b""
