"""The footer of a Parquet file as values that can be changed and written again. Pure.

Apache Thrift's compact protocol is read generically, by field numbers of parquet.thrift
(https://github.com/apache/parquet-format), so that fields which this code does not know stay.

Where a file without the deleted rows is written: by this process, or with the help of a store that copies ranges. I/O.
"""

import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Final

from pyiceberg.io import FileIO
from thrift.protocol.TCompactProtocol import TCompactProtocol
from thrift.protocol.TProtocol import TProtocolException
from thrift.Thrift import TType
from thrift.transport.TTransport import TMemoryBuffer

from lethe.storage.s3 import BYTES_AT_MOST, PART_BYTES_AT_LEAST, ComposedObject, compose
from lethe.uri import is_s3

MAGIC: Final = b"PAR1"
# The length of the footer, and the magic.
TAIL_BYTES: Final = 8

# Field numbers, by struct.
SCHEMA, ROWS, ROW_GROUPS, PROPERTIES, CREATED_BY, COLUMN_ORDERS, ENCRYPTION = 2, 3, 4, 5, 6, 7, 8
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
        return self.fields[number][1] if number in self.fields else default

    def change(self, number: int, value: Any) -> None:
        """Set the value of a field that is there."""
        self.fields[number] = (self.fields[number][0], value)

    def set_i64(self, number: int, value: int) -> None:
        self.fields[number] = (TType.I64, value)

    def set_i32(self, number: int, value: int) -> None:
        self.fields[number] = (TType.I32, value)

    def remove(self, *numbers: int) -> None:
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
            of, size = protocol.readListBegin()
            items = [_read(protocol, of) for _ in range(size)]
            protocol.readListEnd()
            return ThriftList(of, items)
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


_READ_AT_ONCE: Final = 8 * 1024**2


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
        return self._composed.copied

    def copy(self, source: Any, start: int, size: int) -> None:
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
