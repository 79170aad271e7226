"""Takes the content of objects apart, to search all of it for values. Pure: bytes in.

This is independent of the code that erases: it knows nothing of tables, and passes nothing over because of its name. What cannot
be taken apart completely is reported, because it may hold a value.
"""

import base64
import bz2
import gzip
import io
import json
import lzma
import tarfile
import uuid
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, BinaryIO, Final, TypeAlias
from urllib.parse import quote, quote_plus

import fastavro
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import orc

from lethe.ingest.arrow_types import is_list

MIN_VALUE_BYTES: Final = 5  # almost every compressed file contains a shorter value by chance
MAX_DEPTH: Final = 5  # archives in archives
MAX_BYTES: Final = 2**30  # of what one object unpacks to
_PUFFIN: Final = b"PFA1"
_KNOWN: Final = (b"crc\0",)  # formats without anything inside that the raw bytes do not show


class Unreadable(Exception):
    """A part of an object cannot be read. The text says why, without a value."""


@dataclass(frozen=True)
class Bound:
    """A value of a column in a manifest: the least or the greatest of a file."""

    field_id: int
    value: bytes


Part: TypeAlias = bytes | pa.Array | Bound


@dataclass(frozen=True)
class Values:
    """Values to search for, in all forms in which files have them."""

    texts: tuple[str, ...]
    bounds: Mapping[int, frozenset[bytes]] = field(
        default_factory=dict, repr=False
    )  # by field id, as manifests have them
    _forms: tuple[bytes, ...] = field(init=False, repr=False)

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
            found = [v for v in leaf.to_pylist() if v is not None]
            return self.are_in(b"\n".join(found)) or any(t.encode() in found for t in self.texts)
        if pa.types.is_floating(kind):
            numbers = [n for t in self.texts if (n := _number(t)) is not None]
            return bool(
                pc.any(pc.is_in(pc.cast(leaf, pa.float64()), value_set=pa.array(numbers, pa.float64()))).as_py()
            )
        with suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
            texts = pc.cast(leaf, pa.large_string())
            if pc.any(pc.is_in(texts, value_set=pa.array(self.texts, pa.large_string()))).as_py():
                return True
            long = (t for t in self.texts if len(t.encode()) >= MIN_VALUE_BYTES)
            return any(pc.any(pc.match_substring(texts, t)).as_py() for t in long)
        return False


def holds(path: str, content: bytes, values: Values) -> bool:
    """Whether an object holds one of the values, in its path or in its content. Raises: Unreadable, if no value was found until
    then."""
    return values.are_in(path.encode()) or any(values.are_in(part) for part in parts(content))


def holds_batch(stream: BinaryIO, column: str, field_id: int, batch_ids: Collection[str]) -> bool:
    """Whether a data file has a row of one of these batches. Other objects have none. Raises: Unreadable.

    Args:
        column: The name of the batch column, for files without field ids.
    """
    start = stream.read(4)
    stream.seek(0)
    wanted = pa.array(sorted(frozenset(batch_ids)), pa.large_string())
    if start == b"PAR1":
        found = _reading(lambda: list(_ids_in_parquet(stream, column, field_id, wanted)))
    elif start[:3] == b"ORC":
        found = _reading(lambda: list(_ids_in_orc(stream, column)))
    elif start == b"Obj\x01":
        found = _reading(lambda: [pa.array(_ids_in_avro(stream, column), pa.large_string())])
    elif start == b"PARE":
        raise Unreadable("it is encrypted")
    else:
        return False
    return any(pc.any(pc.is_in(pc.cast(ids, pa.large_string()), value_set=wanted)).as_py() for ids in found)


def parts(content: bytes, depth: int = 0) -> Iterator[Part]:
    """The content as it is, and all that is encoded or compressed in it. Raises: Unreadable."""
    yield content
    if not content or content.startswith(_KNOWN):
        return
    if depth > MAX_DEPTH:
        raise Unreadable("archives are nested too deeply in it")
    unpack = next((unpack for is_of, unpack in _FORMATS if is_of(content)), None)
    if unpack is not None:
        yield from _guarded(unpack(content, depth))
    elif content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        yield _reading(lambda: content.decode("utf-16")).encode()
    elif b"\0" in content or not _is_text(content):
        raise Unreadable("its format is not known")


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
    reader: Any = fastavro.reader(io.BytesIO(content))
    yield repr(reader.metadata).encode()
    for record in reader:
        scalars: list[str] = []
        for value in _scalars(record):
            if isinstance(value, bytes | Bound):
                yield value
            else:
                scalars.append(str(value))
        yield pa.array(scalars, pa.large_string())


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


def _of_gzip(content: bytes, depth: int) -> Iterator[Part]:
    with gzip.open(io.BytesIO(content)) as stream:
        yield from parts(_limited(stream), depth + 1)


def _of_bz2(content: bytes, depth: int) -> Iterator[Part]:
    with bz2.open(io.BytesIO(content)) as stream:
        yield from parts(_limited(stream), depth + 1)


def _of_xz(content: bytes, depth: int) -> Iterator[Part]:
    with lzma.open(io.BytesIO(content)) as stream:
        yield from parts(_limited(stream), depth + 1)


def _of_zstd(content: bytes, depth: int) -> Iterator[Part]:
    yield from parts(_inflated(content, "zstd"), depth + 1)


def _of_lz4(content: bytes, depth: int) -> Iterator[Part]:
    yield from parts(_inflated(content, "lz4"), depth + 1)


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
    raise Unreadable("it is encrypted")


_Unpack = Callable[[bytes, int], Iterator[Part]]
_FORMATS: Final[tuple[tuple[Callable[[bytes], bool], _Unpack], ...]] = (
    (lambda c: c.startswith(b"PAR1"), _of_parquet),
    (lambda c: c.startswith(b"PARE"), _encrypted),
    (lambda c: c.startswith(b"ORC"), _of_orc),
    (lambda c: c.startswith(b"Obj\x01"), _of_avro),
    (lambda c: c.startswith(_PUFFIN), _of_puffin),
    (lambda c: c.startswith(b"\x1f\x8b"), _of_gzip),
    (lambda c: c.startswith(b"BZh"), _of_bz2),
    (lambda c: c.startswith(b"\xfd7zXZ\0"), _of_xz),
    (lambda c: c.startswith(b"\x28\xb5\x2f\xfd"), _of_zstd),
    (lambda c: c.startswith(b"\x04\x22\x4d\x18"), _of_lz4),
    (lambda c: c.startswith((b"PK\x03\x04", b"PK\x05\x06")), _of_zip),
    (lambda c: c[257:262] == b"ustar", _of_tar),
)


def _guarded(found: Iterator[Part]) -> Iterator[Part]:
    while True:
        try:
            part = next(found)
        except StopIteration:
            return
        except Unreadable:
            raise
        except Exception as e:  # damaged files make libraries raise anything
            raise Unreadable(
                f"it is damaged, or not in the format that its first bytes name ({type(e).__name__})"
            ) from None
        yield part


def _reading(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except Exception as e:
        raise Unreadable(
            f"it is damaged, or not in the format that its first bytes name ({type(e).__name__})"
        ) from None


def _limited(stream: Any) -> bytes:
    content = bytes(stream.read(MAX_BYTES + 1))
    if len(content) > MAX_BYTES:
        raise Unreadable(f"it unpacks to more than {MAX_BYTES} bytes")
    return content


def _inflated(content: bytes, codec: str) -> bytes:
    with pa.CompressedInputStream(pa.BufferReader(content), codec) as stream:
        return _limited(stream)


def _ids_in_parquet(stream: BinaryIO, column: str, field_id: int, wanted: pa.Array) -> Iterator[pa.Array]:
    file = pq.ParquetFile(pa.PythonFile(stream, mode="r"))
    ids = {f.name: (f.metadata or {}).get(b"PARQUET:field_id") for f in file.schema_arrow}
    own = str(field_id).encode()
    name = next((n for n, i in ids.items() if i == own), column if ids.get(column, own) is None else None)
    if name is None:
        return
    at = next(i for i in range(file.metadata.num_columns) if file.metadata.schema.column(i).path == name)
    for group in range(file.metadata.num_row_groups):
        statistics = file.metadata.row_group(group).column(at).statistics
        known = statistics is not None and statistics.has_min_max and isinstance(statistics.min, str)
        if known and not any(statistics.min <= i <= statistics.max for i in wanted.to_pylist()):
            continue
        yield from file.read_row_group(group, columns=[name]).column(0).chunks


def _ids_in_orc(stream: BinaryIO, column: str) -> Iterator[pa.Array]:
    file = orc.ORCFile(io.BytesIO(stream.read()))
    for stripe in range(file.nstripes if column in file.schema.names else 0):
        yield file.read_stripe(stripe, columns=[column]).column(0)


def _ids_in_avro(stream: BinaryIO, column: str) -> list[str]:
    records: Iterable[Any] = fastavro.reader(stream)
    return [str(r[column]) for r in records if isinstance(r, dict) and r.get(column) is not None]


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
