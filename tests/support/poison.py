"""Files that are small and that cost their reader too much: all memory, minutes, or its life."""

import gzip
import io
import random
from collections.abc import Sequence

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
import pyarrow.parquet.encryption as pe


def deep_json(levels: int) -> bytes:
    """A row with a value that is nested so deep."""
    return b'{"v":1,"day":1,"x":' + b'{"a":' * levels + b"1" + b"}" * levels + b"}\n"


def rows_of_no_bytes(rows: int = 10**15, names: Sequence[str] = ("v", "day")) -> bytes:
    """An Avro file with a block of rows that take no bytes."""
    schema = {"type": "record", "name": "row", "fields": [{"name": n, "type": "null"} for n in names]}
    out = io.BytesIO()
    fastavro.writer(out, schema, [], sync_marker=b"s" * 16)
    return out.getvalue() + _varint(rows) + _varint(0) + b"s" * 16


def endless_array(items: int = 10**15) -> bytes:
    """An Avro array of nulls, which take no bytes."""
    return _varint(items) + _varint(0)


def _varint(value: int) -> bytes:
    left, found = value << 1, b""  # zigzag
    while left > 0x7F:
        found += bytes([left & 0x7F | 0x80])
        left >>= 7
    return found + bytes([left])


def one_text_many_times(rows: int = 65_000, length: int = 32_000) -> bytes:
    """A Parquet file that says a long text once, in a dictionary. Read, it is there for each row."""
    texts = pa.DictionaryArray.from_arrays(pa.array([0] * rows, pa.int32()), ["x" * length])
    of_rows = {"v": pa.nulls(rows, pa.int64()), "day": pa.nulls(rows, pa.int32()), "name": texts}
    return _parquet(pa.table(of_rows))


def many_nulls(rows: int = 50_000_000) -> bytes:
    """A Parquet file of rows that take next to no bytes."""
    return _parquet(pa.table({"v": pa.nulls(rows, pa.int64()), "day": pa.nulls(rows, pa.int32())}))


def _parquet(table: pa.Table) -> bytes:
    out = io.BytesIO()
    pq.write_table(table, out, compression="zstd", store_schema=False, row_group_size=len(table))
    return out.getvalue()


def many_columns(count: int) -> bytes:
    return _parquet(pa.table({f"c{n}": [1] for n in range(count)}))


def blank_lines(count: int) -> bytes:
    """JSON, compressed."""
    return gzip.compress(b'{"v":1,"day":1}\n' + b"\n" * count, 1)


def mutated(content: bytes, seed: int) -> bytes:
    """The same file with some wrong bytes."""
    chance = random.Random(seed)
    found = bytearray(content)
    for _ in range(chance.choice((1, 2, 4, 16, 64))):
        at = chance.randrange(len(found))
        match chance.randrange(4):
            case 0:
                found[at] = chance.randrange(256)
            case 1:
                found[at] ^= 1 << chance.randrange(8)
            case 2:
                del found[at : at + chance.randrange(1, 9)]
            case _:
                found[at:at] = chance.randbytes(chance.randrange(1, 9))
        found = found or bytearray(b"x")
    return bytes(found)


class _OneKey(pe.KmsClient):
    """One key for everything, wrapped in nothing."""

    def wrap_key(self, key_bytes: bytes, _: str) -> bytes:
        return key_bytes

    def unwrap_key(self, wrapped_key: bytes, _: str) -> bytes:
        return wrapped_key


def encrypted(rows: pa.Table, plaintext_footer: bool) -> bytes:
    """A Parquet file. With a plain footer, pyarrow aborts the process that reads the metadata of a column."""
    factory = pe.CryptoFactory(lambda _: _OneKey())
    config = pe.EncryptionConfiguration(
        footer_key="k", column_keys={"k": rows.column_names}, plaintext_footer=plaintext_footer
    )
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), config)
    out = io.BytesIO()
    with pq.ParquetWriter(out, rows.schema, encryption_properties=properties) as writer:
        writer.write_table(rows)
    return out.getvalue()


def many_lists(count: int = 10_000_000) -> bytes:
    """JSON that takes 24 times its size in memory."""
    return b"[" + b"[]," * count + b"[]]"
