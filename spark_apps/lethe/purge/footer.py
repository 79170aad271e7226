"""Makes a Parquet file of row groups of other files: copies their bytes, and writes a new footer. I/O.

The format allows it: a row group is a range of bytes, and only the footer and the page indexes say where it is. Apache Thrift's
compact protocol is read generically, by field numbers of parquet.thrift (https://github.com/apache/parquet-format), so that
fields which this code does not know stay.
"""

import re
import uuid
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Final

from pyiceberg.io import FileIO
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from lethe.storage.s3 import BYTES_AT_MOST, PART_BYTES_AT_LEAST, ComposedObject, compose
from lethe.uri import is_s3

MAGIC: Final = b"PAR1"
TAIL_BYTES: Final = 8
"""The length of the footer, and the magic."""

SCHEMA, ROWS, ROW_GROUPS, PROPERTIES, CREATED_BY, COLUMN_ORDERS, ENCRYPTION = 2, 3, 4, 5, 6, 7, 8
"""Field numbers, by struct."""
KEY, VALUE = 1, 2
CHILDREN = 5
COLUMNS, GROUP_UNCOMPRESSED, GROUP_ROWS, GROUP_OFFSET, GROUP_BYTES, ORDINAL = 1, 2, 3, 5, 6, 7
CHUNK_FILE, CHUNK_OFFSET, CHUNK_DATA, CHUNK_CRYPTO = 1, 2, 3, 8
OFFSET_INDEX, OFFSET_INDEX_LENGTH, COLUMN_INDEX, COLUMN_INDEX_LENGTH = 4, 5, 6, 7
CHUNK_UNCOMPRESSED, CHUNK_BYTES = 6, 7
DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE, BLOOM, BLOOM_LENGTH = 9, 10, 11, 14, 15
PATH, ENCODING_STATS = 3, 13
PAGE_TYPE, PAGE_ENCODING, PAGE_COUNT = 1, 2, 3
PAGES, PAGE_OFFSET = 1, 1

_READ_AT_ONCE: Final = 8 * 1024**2

_WRONG_SIZES: Final = re.compile(rb"parquet-mr version 1\.[0-7]\b")
"""Early versions left the header of the dictionary out of the size of a column (PARQUET-816)."""

_SUMS: Final = (
    (GROUP_UNCOMPRESSED, CHUNK_UNCOMPRESSED),
    (GROUP_BYTES, CHUNK_BYTES),
)
"""The sums of a row group, and what they are sums of."""


class FooterUnreadable(ValueError):
    """The bytes are not what the format says."""


@dataclass
class ThriftList:
    """A list of Thrift."""

    type: int
    items: list[Any]


@dataclass
class Struct:
    """A struct of Thrift: the type and the value of each field, by its number."""

    fields: dict[int, tuple[int, Any]] = field(default_factory=dict)

    def __getitem__(self, number: int) -> Any:
        return self.fields[number][1]

    def get(self, number: int, default: Any = None) -> Any:
        """The value of a field; `default`, if the struct does not have the field."""
        return self.fields[number][1] if number in self.fields else default

    def change(self, number: int, value: Any) -> None:
        """Set the value of a field that is there."""
        self.fields[number] = (self.fields[number][0], value)

    def set_i64(self, number: int, value: int) -> None:
        """Set a field of Thrift's type i64, whether or not the struct has it."""
        self.fields[number] = (TType.I64, value)

    def set_i32(self, number: int, value: int) -> None:
        """Set a field of Thrift's type i32, whether or not the struct has it."""
        self.fields[number] = (TType.I32, value)

    def remove(self, *numbers: int) -> None:
        """Remove fields by their numbers. Fields that the struct does not have are ignored."""
        for number in numbers:
            self.fields.pop(number, None)


def decode(content: bytes) -> Struct:
    """Read the structure of a footer.

    Raises:
        FooterUnreadable: The bytes are not what the format says.
    """
    try:
        return _read_struct(TCompactProtocol(TMemoryBuffer(content)))
    except (EOFError, TProtocolException, AssertionError, IndexError, KeyError, TypeError) as e:
        raise FooterUnreadable(type(e).__name__) from None


def encode(struct: Struct) -> bytes:
    """The struct in the compact protocol, without the length and the magic that follow a footer in a file."""
    buffer = TMemoryBuffer()
    _write_struct(TCompactProtocol(buffer), struct)
    return bytes(buffer.getvalue())


def _read_struct(protocol: Any) -> Struct:
    struct = Struct()
    protocol.readStructBegin()
    while True:
        _, kind, number = protocol.readFieldBegin()
        if kind == TType.STOP:
            break
        struct.fields[number] = (kind, _read(protocol, kind))
        protocol.readFieldEnd()
    protocol.readStructEnd()
    return struct


def _read(protocol: Any, kind: int) -> Any:
    match kind:
        case TType.BOOL:
            return protocol.readBool()
        case TType.BYTE:
            return protocol.readByte()
        case TType.I16:
            return protocol.readI16()
        case TType.I32:
            return protocol.readI32()
        case TType.I64:
            return protocol.readI64()
        case TType.DOUBLE:
            return protocol.readDouble()
        case TType.STRING:
            return protocol.readBinary()
        case TType.STRUCT:
            return _read_struct(protocol)
        case TType.LIST:
            item_type, size = protocol.readListBegin()
            items = [_read(protocol, item_type) for _ in range(size)]
            protocol.readListEnd()
            return ThriftList(item_type, items)
        case _:
            raise FooterUnreadable(f"a field has the Thrift type {kind}, which parquet.thrift does not have")


def _write_struct(protocol: Any, struct: Struct) -> None:
    protocol.writeStructBegin("")
    for number in sorted(struct.fields):  # some may have been added at the end
        kind, value = struct.fields[number]
        protocol.writeFieldBegin("", kind, number)
        _write(protocol, kind, value)
        protocol.writeFieldEnd()
    protocol.writeFieldStop()
    protocol.writeStructEnd()


def _write(protocol: Any, kind: int, value: Any) -> None:
    match kind:
        case TType.BOOL:
            protocol.writeBool(value)
        case TType.BYTE:
            protocol.writeByte(value)
        case TType.I16:
            protocol.writeI16(value)
        case TType.I32:
            protocol.writeI32(value)
        case TType.I64:
            protocol.writeI64(value)
        case TType.DOUBLE:
            protocol.writeDouble(value)
        case TType.STRING:
            protocol.writeBinary(value)
        case TType.STRUCT:
            _write_struct(protocol, value)
        case _:
            protocol.writeListBegin(value.type, len(value.items))
            for item in value.items:
                _write(protocol, value.type, item)
            protocol.writeListEnd()


class FileSink:
    """A new file that this process writes."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        # In bytes.
        self.size = 0

    @property
    def copied_by_store(self) -> int:
        """Bytes that did not come through this process."""
        return 0

    def write(self, content: bytes) -> None:
        """Append bytes. `size` grows by their number."""
        self._stream.write(content)
        self.size += len(content)

    def copy(self, source: Any, start: int, size: int) -> None:
        """Append a range of an open file.

        Raises:
            FooterUnreadable: The file ends within it.
        """
        for begin in range(start, start + size, _READ_AT_ONCE):
            self.write(read(source, begin, min(_READ_AT_ONCE, start + size - begin)))


class ComposedSink(FileSink):
    """A new object into which the store copies ranges of an old one."""

    def __init__(self, composed: ComposedObject, source: Any) -> None:
        """Create `ComposedSink`.

        Args:
            source: The old one, as an open file.
        """
        super().__init__(composed)
        self._composed, self._source = composed, source

    @property
    def copied_by_store(self) -> int:
        """Bytes that the store has copied until now. The last ranges are copied when the object is completed."""
        return self._composed.copied

    def copy(self, source: Any, start: int, size: int) -> None:
        """Append a range. Where it can, the store copies it from the old object; otherwise this process sends it.

        Raises:
            FooterUnreadable: The file ends within it.
            StoreError: A store refused a request or did not answer.
        """
        if source is not self._source:
            super().copy(source, start, size)
            return
        self._composed.copy(start, size)
        self.size += size


@contextmanager
def new_file(
    io: FileIO, properties: Mapping[str, str], to: str, path: str, source: Any, size: int
) -> Iterator[FileSink]:
    """A new file. It is complete when the block has ended. If the block fails, there may be a file of some of its bytes.

    Args:
        properties: Of `io`.
        to: URI of the new file.
        path: URI of the file that it is made of, which is open as `source` and has `size` bytes.

    Raises:
        StoreError: A store refused a request or did not answer.
        Exception: What `io` raises.
    """
    composed = _composed(properties, to, path, source, size)
    if composed is None:
        with io.new_output(to).create(overwrite=True) as stream:
            yield FileSink(stream)
    else:
        with composed:
            yield ComposedSink(composed, source)


def read(source: Any, start: int, size: int) -> bytes:
    """A range of an open file.

    Raises:
        FooterUnreadable: The file ends within it.
    """
    source.seek(start)
    content = bytes(source.read(size))
    if len(content) < size:
        raise FooterUnreadable("it ends within a row group")
    return content


def _composed(properties: Mapping[str, str], to: str, path: str, source: Any, size: int) -> ComposedObject | None:
    large = 2 * PART_BYTES_AT_LEAST <= size <= BYTES_AT_MOST  # no range of a smaller one is a part
    if not large or not is_s3(to) or not is_s3(path):
        return None
    return compose(properties, to, path, size, lambda start, count: read(source, start, count))


def path_of_attempt(path: str) -> str:
    """A path that no other attempt of a task has.

    Spark may repeat a task whose first attempt goes on, and deletes its file after an error.
    """
    return f"{path.removesuffix('.parquet')}-{uuid.uuid4().hex[:8]}.parquet"


def footer_of(stream: Any, size: int) -> Struct:
    """The footer of an open file of so many bytes.

    Raises:
        FooterUnreadable: The bytes are not what the format says.
    """
    stream.seek(max(0, size - TAIL_BYTES))
    tail = bytes(stream.read(TAIL_BYTES))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != MAGIC or length > size - TAIL_BYTES:
        raise FooterUnreadable("its end is not that of a plain Parquet file")
    stream.seek(size - TAIL_BYTES - length)
    footer_read = decode(bytes(stream.read(length)))
    if ENCRYPTION in footer_read.fields:
        raise FooterUnreadable("it is encrypted")
    if _WRONG_SIZES.match(bytes(footer_read.get(CREATED_BY, b""))):
        raise FooterUnreadable("its writer is so old that its sizes of columns may be wrong")
    return footer_read


def groups_of(metadata: Struct) -> list[Struct]:
    """The row groups of a footer."""
    return list(metadata[ROW_GROUPS].items)


def add_columns(metadata: Struct, more: Struct) -> None:
    """Add the columns of another footer at the end of the schema. The row groups do not get them.

    Raises:
        FooterUnreadable: The footers are not alike.
    """
    root, *_ = metadata[SCHEMA].items
    added_root, *columns = more[SCHEMA].items
    root.change(CHILDREN, root[CHILDREN] + added_root[CHILDREN])
    metadata[SCHEMA].items += columns
    if COLUMN_ORDERS in metadata.fields:  # without it, readers ignore all bounds
        if COLUMN_ORDERS not in more.fields:
            raise FooterUnreadable("the orders of the added columns are unknown")
        metadata[COLUMN_ORDERS].items += more[COLUMN_ORDERS].items


def narrow(group: Struct, places: Collection[int]) -> None:
    """Leave out columns of a row group.

    Args:
        places: Of the columns. The first one of the row group must stay.

    Raises:
        FooterUnreadable: The bytes are not what the format says.
    """
    chunks = group[COLUMNS].items
    out = [c for n, c in enumerate(chunks) if n in places]
    chunks[:] = [c for n, c in enumerate(chunks) if n not in places]
    _add_up(group, out, -1)
    if group.get(GROUP_OFFSET):
        group.change(GROUP_OFFSET, extent(group)[0])


def _add_up(group: Struct, chunks: Collection[Struct], sign: int) -> None:
    """Add the sizes of columns to those of a row group, or subtract them."""
    for of_group, of_chunk in _SUMS:
        if of_group in group.fields:
            size = sum(c[CHUNK_DATA][of_chunk] for c in chunks)
            group.change(of_group, group[of_group] + sign * size)


def extent(group: Struct) -> tuple[int, int]:
    """The first byte of a row group, and the byte after its last. There may be other bytes between its columns.

    Raises:
        FooterUnreadable: The columns overlap.
    """
    ranges = sorted(_chunk_extent(chunk) for chunk in group[COLUMNS].items)
    if any(end > start for (_, end), (start, _) in pairwise(ranges)):
        raise FooterUnreadable("the columns of a row group overlap")
    return ranges[0][0], ranges[-1][1]


def _chunk_extent(chunk: Struct) -> tuple[int, int]:
    if CHUNK_FILE in chunk.fields or CHUNK_CRYPTO in chunk.fields or CHUNK_DATA not in chunk.fields:
        raise FooterUnreadable("a column is in another file, or encrypted")
    data = chunk[CHUNK_DATA]
    # Some writers leave 0 where there is no dictionary.
    start = min(o for o in (data[DATA_PAGE], data.get(DICTIONARY_PAGE)) if o)
    return start, start + data[CHUNK_BYTES]


@dataclass
class _Indexes:
    """The page indexes of a column chunk, as they will be written."""

    chunk: Struct
    column: bytes
    offset: bytes


class Splice:
    """Writes a file with the footer of another one, and with other row groups. `close` ends it.

    Args:
        sink: A new file.
        template: The footer of a file with the same columns, in the same order. It is changed.
    """

    def __init__(self, sink: FileSink, template: Struct) -> None:
        self._sink, self._footer = sink, template
        self._groups: list[Struct] = []
        self._indexes: list[_Indexes] = []

    def add(self, stream: Any, group: Struct) -> int:
        """Copy a row group of an open file. The group is changed.

        Returns:
            The number of bytes.

        Raises:
            FooterUnreadable: The bytes are not what the format says.
        """
        size = self._copy(stream, group)
        if ORDINAL in group.fields:
            group.change(ORDINAL, len(self._groups))
        self._groups.append(group)
        return size

    def widen(self, stream: Any, more: Struct) -> int:
        """Copy the columns of a row group of an open file, and add them at the end of the last row group.

        Returns and raises as `add`.
        """
        size = self._copy(stream, more)
        group, chunks = self._groups[-1], more[COLUMNS].items
        if group[GROUP_ROWS] != more[GROUP_ROWS]:
            raise FooterUnreadable("the added columns have another number of rows")
        group[COLUMNS].items += chunks
        _add_up(group, chunks, 1)
        return size

    def _copy(self, stream: Any, group: Struct) -> int:
        """Copy the columns of a row group, which is then at its new place. Returns and raises as `add`."""
        start, end = extent(group)
        moved = (self._sink.size or len(MAGIC)) - start
        for chunk in group[COLUMNS].items:
            self._indexes += self._indexes_of(stream, chunk, moved)
        if self._sink.size == 0 and start == len(MAGIC):
            # With the beginning of the file: a store copies no range after so few bytes, so some MiB would be read and sent.
            self._sink.copy(stream, 0, end)
        else:
            self._begin()
            self._sink.copy(stream, start, end - start)
        _move_all(group, moved)
        return end - start

    def _begin(self) -> None:
        if self._sink.size == 0:
            self._sink.write(MAGIC)

    def close(self) -> None:
        """Write the page indexes and the footer."""
        self._begin()
        for indexes in self._indexes:
            indexes.chunk.set_i64(COLUMN_INDEX, self._sink.size)
            indexes.chunk.set_i32(COLUMN_INDEX_LENGTH, len(indexes.column))
            self._sink.write(indexes.column)
        for indexes in self._indexes:
            indexes.chunk.set_i64(OFFSET_INDEX, self._sink.size)
            indexes.chunk.set_i32(OFFSET_INDEX_LENGTH, len(indexes.offset))
            self._sink.write(indexes.offset)
        self._footer.change(ROW_GROUPS, ThriftList(self._footer[ROW_GROUPS].type, self._groups))
        self._footer.change(ROWS, sum(g[GROUP_ROWS] for g in self._groups))
        content = encode(self._footer)
        self._sink.write(content + len(content).to_bytes(4, "little") + MAGIC)

    def _indexes_of(self, stream: Any, chunk: Struct, moved: int) -> Iterator[_Indexes]:
        """The page indexes of a chunk, if it has both. The chunk names none any more."""
        places = [chunk.get(n) for n in (COLUMN_INDEX, COLUMN_INDEX_LENGTH)]
        places += [chunk.get(n) for n in (OFFSET_INDEX, OFFSET_INDEX_LENGTH)]
        chunk.remove(COLUMN_INDEX, COLUMN_INDEX_LENGTH, OFFSET_INDEX, OFFSET_INDEX_LENGTH)
        if any(place is None for place in places):
            return
        stream.seek(places[0])
        column = bytes(stream.read(places[1]))
        stream.seek(places[2])
        offset = decode(bytes(stream.read(places[3])))
        for page in offset[PAGES].items:
            page.change(PAGE_OFFSET, page[PAGE_OFFSET] + moved)
        yield _Indexes(chunk, column, encode(offset))


def _move_all(group: Struct, by: int) -> None:
    """Move a row group to another place of a file. It has no Bloom filters any more: they are outside of it."""
    _move(group, by, GROUP_OFFSET)
    for chunk in group[COLUMNS].items:
        _move(chunk, by, CHUNK_OFFSET)
        data = chunk[CHUNK_DATA]
        _move(data, by, DATA_PAGE, INDEX_PAGE, DICTIONARY_PAGE)
        data.remove(BLOOM, BLOOM_LENGTH)


def _move(struct: Struct, by: int, *numbers: int) -> None:
    for number in numbers:
        if struct.get(number):  # 0: the writer left it out
            struct.change(number, struct[number] + by)
