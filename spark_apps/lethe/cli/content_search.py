"""Searches the content of an object for values and for rows of batches. I/O: reads streams.

Archives, compressed parts and files of rows are taken apart. What cannot be taken apart completely is refused, because it may
hold a value.
"""

import base64
import bz2
import gzip
import io
import json
import lzma
import re
import struct
import tarfile
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal, localcontext
from functools import partial
from typing import Any, BinaryIO, Final, TypeAlias
from urllib.parse import quote, quote_plus

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc
from pyiceberg.conversions import to_bytes
from pyiceberg.expressions.literals import StringLiteral
from pyiceberg.schema import Schema, index_by_id
from pyiceberg.table import Table
from pyiceberg.types import (
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    PrimitiveType,
    StringType,
    TimestampType,
    TimestamptzType,
)

from lethe.base.avro import reader
from lethe.files.values import micros_of
from lethe.ingest.avro_format import open_avro
from lethe.ingest.exact_values import is_list
from lethe.ingest.schema_fit import field_ids

_NARROWER: Final[Mapping[type[PrimitiveType], PrimitiveType]] = {
    LongType: IntegerType(),
    DoubleType: FloatType(),
    TimestampType: DateType(),
}
"""Types that a column may have had before it was widened, besides those in the table's schemas."""

_TIME: Final = re.compile(r"\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}\S*", re.ASCII)
_WHOLE: Final = re.compile(r"[+-]?\d{1,20}", re.ASCII)
_DIGITS: Final = 100
"""More than a decimal has. Python rounds to 28 by default."""
MIN_VALUE_BYTES: Final = 5
"""The shortest value that is searched for: almost every compressed file contains a shorter one by chance."""
MAX_DEPTH: Final = 5
"""How deep archives within archives are searched."""
MAX_BYTES: Final = 2**30
"""The most bytes that one object may unpack to."""
_PUFFIN: Final = b"PFA1"
_KNOWN: Final = (b"crc\0",)
"""The beginnings of files that contain nothing which the raw bytes do not show."""


def bound_values(texts: Iterable[str], schemas: Iterable[Schema]) -> dict[int, frozenset[bytes]]:
    """By field id, the values as bounds have them. Only of fields whose type has such values.

    A manifest has the least and the greatest value of each column of a file, as bytes of a form that depends on the column's
    type. So a number or a date has no text there.

    Args:
        texts: The values, as a person writes them.
        schemas: All schemas of the table.
    """
    types: dict[int, set[PrimitiveType]] = {}
    for schema in schemas:
        for i, of_field in index_by_id(schema).items():
            if isinstance(of_field.field_type, PrimitiveType):
                narrower = _NARROWER.get(type(of_field.field_type))
                types.setdefault(i, set()).update(t for t in (of_field.field_type, narrower) if t is not None)
    value_texts = tuple(texts)
    of_type = {
        t: frozenset(_encoded(value_texts, t)) for t in {t for bytes_by_field in types.values() for t in bytes_by_field}
    }
    bytes_by_field = {i: frozenset[bytes]().union(*(of_type[t] for t in of_field)) for i, of_field in types.items()}
    return {i: values for i, values in bytes_by_field.items() if values}


def _encoded(texts: Iterable[str], kind: PrimitiveType) -> Iterator[bytes]:
    for text in texts:
        try:
            yield to_bytes(kind, _value(text, kind))
        except (ValueError, TypeError, ArithmeticError, NotImplementedError, struct.error):
            continue  # the type has no such value


def _value(text: str, kind: PrimitiveType) -> Any:
    if isinstance(kind, StringType):
        return text
    if isinstance(kind, BooleanType):
        raise TypeError  # each column of this type has such bounds
    if isinstance(kind, (IntegerType, LongType)):
        return int(text)
    if isinstance(kind, DecimalType):
        exact = Decimal(text)
        with localcontext(prec=_DIGITS):
            scaled = exact.quantize(Decimal((0, (1,), -kind.scale)))
        if scaled != exact:
            raise ValueError
        return scaled
    if isinstance(kind, TimestampType | TimestamptzType):
        time = _time_of(text)
        if time is None or (time.tzinfo is None) != isinstance(kind, TimestampType):
            raise ValueError
        return micros_of(time)
    return StringLiteral(text).to(kind).value


def _time_of(text: str) -> datetime | None:
    """The point in time that a text says, as lists of values write it. None: it says none."""
    try:
        return datetime.fromisoformat(text) if _TIME.fullmatch(text) else None
    except ValueError:
        return None


class UnsearchableContent(Exception):
    """A part of an object cannot be read. The text says why, without a value."""


@dataclass(frozen=True)
class Bound:
    """A value of a column in a manifest: the least or the greatest of a file."""

    field_id: int
    value: bytes


Part: TypeAlias = bytes | pa.Array | Bound


@dataclass(frozen=True)
class SearchedColumn:
    """The batch column to search for erased batches."""

    field_id: int
    names: frozenset[str]
    """Those that it has or had: they find it in files without field ids."""

    @classmethod
    def of(cls, table: Table, field_id: int) -> "SearchedColumn":
        """The column with this field id, by all of its names."""
        names = {s.find_column_name(field_id) for s in table.schemas().values()}
        names |= {name for (name, *_), i in (field_ids(table.properties) or {}).items() if i == field_id}
        return cls(field_id, frozenset(n for n in names if n is not None))

    def names_in(self, ids: Mapping[str, int | None]) -> list[str]:
        """The names of the columns of a file that may be it: by its field id, which stays when it is renamed, or by its names.

        Args:
            ids: The field ids of the file's columns, by name; None: the file does not say it.
        """
        by_id = [name for name, i in ids.items() if i == self.field_id]
        return by_id or [name for name, i in ids.items() if i is None and name in self.names]


@dataclass(frozen=True)
class SearchedValues:
    """Values to search for, in all forms in which files have them."""

    texts: tuple[str, ...]
    bounds: Mapping[int, frozenset[bytes]] = field(default_factory=dict, repr=False)
    """The values in the form of bounds, by field id."""
    _forms: tuple[bytes, ...] = field(init=False, repr=False)
    _stored: dict[pa.DataType, pa.Array] = field(init=False, repr=False, compare=False, default_factory=dict)

    def __post_init__(self) -> None:
        forms = {form for text in self.texts for form in _forms_of(text) if len(form) >= MIN_VALUE_BYTES}
        object.__setattr__(self, "_forms", tuple(sorted(forms)))

    def are_in(self, part: Part) -> bool:
        """Whether one of the values is in a part of an object: anywhere in bytes, or as a value of a column or within one."""
        if isinstance(part, Bound):
            return part.value in self.bounds.get(part.field_id, ())
        if isinstance(part, bytes):
            return any(form in part for form in self._forms)
        return any(self._is_in_leaf(leaf) for leaf in _leaves(part))

    def _is_in_leaf(self, leaf: pa.Array) -> bool:
        kind = leaf.type
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            values = [v for v in leaf.to_pylist() if v is not None]
            return self.are_in(b"\n".join(values)) or any(t.encode() in values for t in self.texts)
        if pa.types.is_floating(kind):
            numbers = [n for t in self.texts if (n := _number(t)) is not None]
            return bool(
                pc.any(pc.is_in(pc.cast(leaf, pa.float64()), value_set=pa.array(numbers, pa.float64()))).as_py()
            )
        if pa.types.is_timestamp(kind) or pa.types.is_decimal(kind):
            stored = leaf if pa.types.is_decimal(kind) else _times_in(leaf)
            if pc.any(pc.is_in(stored, value_set=self._in_type(kind))).as_py():
                return True
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            texts = pc.cast(leaf, pa.large_string())
            wanted = [_whole(t) for t in self.texts] if pa.types.is_integer(kind) else self.texts
            if pc.any(pc.is_in(texts, value_set=pa.array(wanted, pa.large_string()))).as_py():
                return True
            long = (t for t in self.texts if len(t.encode()) >= MIN_VALUE_BYTES)
            return any(pc.any(pc.match_substring(texts, t)).as_py() for t in long)
        return False

    def _in_type(self, kind: pa.DataType) -> pa.Array:
        """The values in the type of a column of times or decimals, which can be written in several ways."""
        if kind not in self._stored:
            self._stored[kind] = _decimals(self.texts, kind) if pa.types.is_decimal(kind) else _times(self.texts)
        return self._stored[kind]


def _decimals(texts: Iterable[str], kind: pa.DataType) -> pa.Array:
    numbers: list[Decimal] = []
    for text in texts:
        with suppress(ArithmeticError, ValueError, pa.ArrowInvalid):
            numbers += pa.array([Decimal(text)], kind).to_pylist()
    return pa.array(numbers, kind)


def _times(texts: Iterable[str]) -> pa.Array:
    return pa.array([micros_of(time) for text in texts if (time := _time_of(text)) is not None], pa.int64())


def _times_in(leaf: pa.Array) -> pa.Array:
    """The microseconds since 1970."""
    return pc.cast(pc.cast(leaf, pa.timestamp("us", leaf.type.tz), safe=False), pa.int64())


def _whole(text: str) -> str:
    """A whole number without a plus sign and leading zeros. Other texts stay as they are."""
    return str(int(text)) if _WHOLE.fullmatch(text) else text


def _leaves(array: pa.Array) -> Iterator[pa.Array]:
    kind = array.type
    if isinstance(array, pa.ExtensionArray):
        yield from _leaves(array.storage)
    elif pa.types.is_dictionary(kind):
        yield from _leaves(array.dictionary)
    elif pa.types.is_struct(kind):
        for inner in array.flatten():
            yield from _leaves(inner)
    elif pa.types.is_map(kind):
        yield from _leaves(array.keys)
        yield from _leaves(array.items)
    elif is_list(kind):
        yield from _leaves(array.flatten())
    else:
        yield array


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _forms_of(text: str) -> Iterator[bytes]:
    yield from (form.encode() for form in (text, quote(text), quote(text, safe=""), quote_plus(text)))
    yield json.dumps(text)[1:-1].encode()
    yield text.encode("utf-16-le")
    yield text.encode("utf-16-be")
    with suppress(UnicodeEncodeError):
        yield text.encode("latin-1")
    with suppress(ValueError):
        yield uuid.UUID(text).bytes
    data = text.encode()
    for shift, start in ((0, 0), (1, 2), (2, 3)):  # in Base64, the form depends on what comes before
        encoded = base64.b64encode(b"\0" * shift + data)
        yield encoded[start : (shift + len(data)) * 8 // 6]


def holds(path: str, content: bytes, values: SearchedValues) -> bool:
    """Whether an object holds one of the values, in its path or in its content.

    Raises:
        UnsearchableContent: A part cannot be searched, and no value was found before it.
    """
    return values.are_in(path.encode("utf-8", "surrogateescape")) or any(values.are_in(part) for part in parts(content))


def holds_batch(stream: BinaryIO, column: SearchedColumn, batch_ids: Collection[str]) -> bool:
    """Whether a data file has a row of one of these batches. Other objects have none.

    Raises:
        UnsearchableContent: The file is encrypted, or its rows cannot be read.
    """
    start = stream.read(4)
    stream.seek(0)
    id_array = pa.array(sorted(frozenset(batch_ids)), pa.large_string())
    if start == b"PAR1":
        columns = _reading(lambda: list(_ids_in_parquet(stream, column, id_array)))
    elif start[:3] == b"ORC":
        columns = _reading(lambda: list(_ids_in_orc(stream, column)))
    elif start == b"Obj\x01":
        columns = _reading(lambda: list(_ids_in_avro(stream, column)))
    elif start == b"PARE":
        raise UnsearchableContent("it is encrypted")
    else:
        return False
    return any(pc.any(pc.is_in(pc.cast(ids, pa.large_string()), value_set=id_array)).as_py() for ids in columns)


def parts(content: bytes, depth: int = 0) -> Iterator[Part]:
    """The content as it is, and all that is encoded or compressed in it.

    Raises:
        UnsearchableContent: A part is of an unknown format, or archives are nested too deeply.
    """
    yield content
    if not content or content.startswith(_KNOWN):
        return
    if depth > MAX_DEPTH:
        raise UnsearchableContent("archives are nested too deeply in it")
    unpack = next((unpack for is_of, unpack in _FORMATS if is_of(content)), None)
    if unpack is not None:
        yield from _guarded(unpack(content, depth))
    elif content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        yield _reading(lambda: content.decode("utf-16")).encode()
    elif b"\0" in content or not _is_text(content):
        raise UnsearchableContent("its format is not known")


def _of_parquet(content: bytes, _: int) -> Iterator[Part]:
    file = pq.ParquetFile(io.BytesIO(content))
    yield repr(file.metadata.metadata).encode()
    for batch in file.iter_batches():
        yield from batch.columns


def _of_orc(content: bytes, _: int) -> Iterator[pa.Array]:
    file = orc.ORCFile(io.BytesIO(content))
    for stripe in range(file.nstripes):
        yield from file.read_stripe(stripe).columns


def _of_avro(content: bytes, _: int) -> Iterator[Part]:
    records = reader(io.BytesIO(content))
    yield repr(records.metadata).encode()
    for record in records:
        texts: list[str] = []
        whole: list[int] = []
        times: list[int] = []
        for value in _scalars(record):
            match value:
                case bytes() | Bound():
                    yield value
                    continue
                case uuid.UUID():
                    yield value.bytes
                case Decimal():
                    yield pa.array([value])
                case datetime():
                    times.append(micros_of(value))
                case int() if not isinstance(value, bool):
                    whole.append(value)
            texts.append(str(value))
        yield pa.array(texts, pa.large_string())
        yield pa.array(whole, pa.int64())
        yield pa.array(times, pa.int64()).cast(pa.timestamp("us"))


def _of_puffin(content: bytes, depth: int) -> Iterator[Part]:
    """The blobs, as they are or unpacked. The types of blobs that Iceberg defines have no values of columns."""
    size = int.from_bytes(content[-12:-8], "little")
    footer = json.loads(content[-12 - size : -12])
    for blob in footer["blobs"]:
        data = content[blob["offset"] : blob["offset"] + blob["length"]]
        codec = blob.get("compression-codec")
        if codec is not None:
            data = _inflated(data, str(codec))
        yield data
        if blob["type"] not in ("apache-datasketches-theta-v1", "deletion-vector-v1"):
            yield from parts(data, depth + 1)


def _of_stream(open_stream: Callable[..., Any], content: bytes, depth: int) -> Iterator[Part]:
    with open_stream(io.BytesIO(content)) as stream:
        yield from parts(_limited(stream), depth + 1)


def _of_codec(codec: str, content: bytes, depth: int) -> Iterator[Part]:
    yield from parts(_inflated(content, codec), depth + 1)


def _of_zip(content: bytes, depth: int) -> Iterator[Part]:
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        for member in archive.infolist():
            yield member.filename.encode()
            with archive.open(member) as stream:
                yield from parts(_limited(stream), depth + 1)


def _of_tar(content: bytes, depth: int) -> Iterator[Part]:
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        for member in archive:
            yield f"{member.name}\n{member.linkname}".encode()
            if (stream := archive.extractfile(member)) is not None:
                yield from parts(_limited(stream), depth + 1)


def _encrypted(_: bytes, __: int) -> Iterator[Part]:
    raise UnsearchableContent("it is encrypted")


_Unpack = Callable[[bytes, int], Iterator[Part]]
_FORMATS: Final[tuple[tuple[Callable[[bytes], bool], _Unpack], ...]] = (
    (lambda c: c.startswith(b"PAR1"), _of_parquet),
    (lambda c: c.startswith(b"PARE"), _encrypted),
    (lambda c: c.startswith(b"ORC"), _of_orc),
    (lambda c: c.startswith(b"Obj\x01"), _of_avro),
    (lambda c: c.startswith(_PUFFIN), _of_puffin),
    (lambda c: c.startswith(b"\x1f\x8b"), partial(_of_stream, gzip.open)),
    (lambda c: c.startswith(b"BZh"), partial(_of_stream, bz2.open)),
    (lambda c: c.startswith(b"\xfd7zXZ\0"), partial(_of_stream, lzma.open)),
    (lambda c: c.startswith(b"\x28\xb5\x2f\xfd"), partial(_of_codec, "zstd")),
    (lambda c: c.startswith(b"\x04\x22\x4d\x18"), partial(_of_codec, "lz4")),
    (lambda c: c.startswith((b"PK\x03\x04", b"PK\x05\x06")), _of_zip),
    (lambda c: c[257:262] == b"ustar", _of_tar),
)


def _guarded(found: Iterator[Part]) -> Iterator[Part]:
    while (part := _reading(lambda: next(found, None))) is not None:
        yield part


def _reading(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except UnsearchableContent:
        raise
    except Exception as e:  # damaged files make libraries raise anything
        raise UnsearchableContent(
            f"it is damaged, or not in the format that its first bytes name ({type(e).__name__})"
        ) from None


def _limited(stream: Any) -> bytes:
    content = bytes(stream.read(MAX_BYTES + 1))
    if len(content) > MAX_BYTES:
        raise UnsearchableContent(f"it unpacks to more than {MAX_BYTES} bytes")
    return content


def _inflated(content: bytes, codec: str) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
        return _limited(stream)


def _ids_in_parquet(stream: BinaryIO, column: SearchedColumn, id_array: pa.Array) -> Iterator[pa.Array]:
    file = pq.ParquetFile(pa.PythonFile(stream, mode="r"))
    for name in column.names_in(
        {f.name: _id_of((f.metadata or {}).get(b"PARQUET:field_id")) for f in file.schema_arrow}
    ):
        indexes = [i for i in range(file.metadata.num_columns) if file.metadata.schema.column(i).path == name]
        if len(indexes) != 1:  # a column named `a.b` has the same path as the field `b` of `a`
            raise UnsearchableContent("several of its columns have the name of the batch column")
        (column_index,) = indexes
        for group in range(file.metadata.num_row_groups):
            statistics = file.metadata.row_group(group).column(column_index).statistics
            has_bounds = statistics is not None and statistics.has_min_max and isinstance(statistics.min, str)
            if has_bounds and not any(statistics.min <= i <= statistics.max for i in id_array.to_pylist()):
                continue
            yield from file.read_row_group(group, columns=[name]).column(0).chunks


def _ids_in_orc(stream: BinaryIO, column: SearchedColumn) -> Iterator[pa.Array]:
    file = orc.ORCFile(io.BytesIO(stream.read()))
    for name in column.names_in({f.name: _id_of((f.metadata or {}).get(b"iceberg.id")) for f in file.schema}):
        for stripe in range(file.nstripes):
            yield file.read_stripe(stripe, columns=[name]).column(0)


def _ids_in_avro(stream: BinaryIO, column: SearchedColumn) -> Iterator[pa.Array]:
    schema: Any = reader(stream).writer_schema
    fields = schema.get("fields") if isinstance(schema, dict) else None
    # Fields of manifests have ids of their own, which may be that of the batch column.
    texts = [f for f in fields or () if _holds_text(f["type"])]
    for name in column.names_in({str(f["name"]): _id_of(f.get("field-id")) for f in texts}):
        stream.seek(0)
        for rows in open_avro(stream, pa.schema([]), name).tables:
            yield from rows.column(0).chunks


def _holds_text(kind: Any) -> bool:
    """Whether an Avro type is that of texts, which may be null."""
    if isinstance(kind, list):
        return any(map(_holds_text, kind))
    return (kind["type"] if isinstance(kind, dict) else kind) == "string"


def _id_of(stored: Any) -> int | None:
    return int(stored) if stored is not None else None


def _scalars(value: Any) -> Iterator[Any]:
    if isinstance(value, dict):
        # Avro has no maps with keys of numbers, so a manifest has lists of such pairs.
        if value.keys() == {"key", "value"} and isinstance(value["key"], int) and isinstance(value["value"], bytes):
            yield Bound(value["key"], value["value"])
        for key, inner in value.items():
            yield key
            yield from _scalars(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from _scalars(inner)
    elif value is not None:
        yield value


def _is_text(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
