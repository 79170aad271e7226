"""Makes a Parquet file of row groups of other files, by copying their bytes. I/O.

The format allows it: a row group is a range of bytes, and only the footer and the page indexes say where it is.
"""

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final

from lethe.purge import footer
from lethe.purge.footer import FileSink, FooterUnreadable, Struct, ThriftList

# Early versions left the header of the dictionary out of the size of a column (PARQUET-816).
_WRONG_SIZES: Final = re.compile(rb"parquet-mr version 1\.[0-7]\b")

# The sums of a row group, and what they are sums of.
_SUMS: Final = (
    (footer.GROUP_UNCOMPRESSED, footer.CHUNK_UNCOMPRESSED),
    (footer.GROUP_BYTES, footer.CHUNK_BYTES),
)


def footer_of(stream: Any, size: int) -> Struct:
    """The footer of an open file of so many bytes.

    Raises:
        FooterUnreadable: The bytes are not what the format says.
    """
    stream.seek(max(0, size - footer.TAIL_BYTES))
    tail = bytes(stream.read(footer.TAIL_BYTES))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != footer.MAGIC or length > size - footer.TAIL_BYTES:
        raise FooterUnreadable("its end is not that of a plain Parquet file")
    stream.seek(size - footer.TAIL_BYTES - length)
    footer_read = footer.decode(bytes(stream.read(length)))
    if footer.ENCRYPTION in footer_read.fields:
        raise FooterUnreadable("it is encrypted")
    if _WRONG_SIZES.match(bytes(footer_read.get(footer.CREATED_BY, b""))):
        raise FooterUnreadable("its writer is so old that its sizes of columns may be wrong")
    return footer_read


def groups_of(found: Struct) -> list[Struct]:
    """The row groups of a footer."""
    return list(found[footer.ROW_GROUPS].items)


def add_columns(found: Struct, more: Struct) -> None:
    """Add the columns of another footer at the end of the schema. The row groups do not get them.

    Raises:
        FooterUnreadable: The footers are not alike.
    """
    root, *_ = found[footer.SCHEMA].items
    other, *columns = more[footer.SCHEMA].items
    root.change(footer.CHILDREN, root[footer.CHILDREN] + other[footer.CHILDREN])
    found[footer.SCHEMA].items += columns
    if footer.COLUMN_ORDERS in found.fields:  # without it, readers ignore all bounds
        if footer.COLUMN_ORDERS not in more.fields:
            raise FooterUnreadable("the orders of the added columns are unknown")
        found[footer.COLUMN_ORDERS].items += more[footer.COLUMN_ORDERS].items


def narrow(group: Struct, places: Collection[int]) -> None:
    """Leave out columns of a row group.

    Args:
        places: Of the columns. The first one of the row group must stay.

    Raises:
        FooterUnreadable: The bytes are not what the format says.
    """
    chunks = group[footer.COLUMNS].items
    out = [c for n, c in enumerate(chunks) if n in places]
    chunks[:] = [c for n, c in enumerate(chunks) if n not in places]
    _add_up(group, out, -1)
    if group.get(footer.GROUP_OFFSET):
        group.change(footer.GROUP_OFFSET, extent(group)[0])


def _add_up(group: Struct, chunks: Collection[Struct], sign: int) -> None:
    """Add the sizes of columns to those of a row group, or subtract them."""
    for of_group, of_chunk in _SUMS:
        if of_group in group.fields:
            size = sum(c[footer.CHUNK_DATA][of_chunk] for c in chunks)
            group.change(of_group, group[of_group] + sign * size)


def extent(group: Struct) -> tuple[int, int]:
    """The first byte of a row group, and the byte after its last. There may be other bytes between its columns.

    Raises:
        FooterUnreadable: The columns overlap.
    """
    ranges = sorted(_chunk_extent(chunk) for chunk in group[footer.COLUMNS].items)
    if any(end > start for (_, end), (start, _) in pairwise(ranges)):
        raise FooterUnreadable("the columns of a row group overlap")
    return ranges[0][0], ranges[-1][1]


def _chunk_extent(chunk: Struct) -> tuple[int, int]:
    if (
        footer.CHUNK_FILE in chunk.fields
        or footer.CHUNK_CRYPTO in chunk.fields
        or footer.CHUNK_DATA not in chunk.fields
    ):
        raise FooterUnreadable("a column is in another file, or encrypted")
    data = chunk[footer.CHUNK_DATA]
    # Some writers leave 0 where there is no dictionary.
    start = min(o for o in (data[footer.DATA_PAGE], data.get(footer.DICTIONARY_PAGE)) if o)
    return start, start + data[footer.CHUNK_BYTES]


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
        if footer.ORDINAL in group.fields:
            group.change(footer.ORDINAL, len(self._groups))
        self._groups.append(group)
        return size

    def widen(self, stream: Any, more: Struct) -> int:
        """Copy the columns of a row group of an open file, and add them at the end of the last row group.

        Returns and raises as `add`.
        """
        size = self._copy(stream, more)
        group, chunks = self._groups[-1], more[footer.COLUMNS].items
        if group[footer.GROUP_ROWS] != more[footer.GROUP_ROWS]:
            raise FooterUnreadable("the added columns have another number of rows")
        group[footer.COLUMNS].items += chunks
        _add_up(group, chunks, 1)
        return size

    def _copy(self, stream: Any, group: Struct) -> int:
        """Copy the columns of a row group, which is then at its new place. Returns and raises as `add`."""
        start, end = extent(group)
        moved = (self._sink.size or len(footer.MAGIC)) - start
        for chunk in group[footer.COLUMNS].items:
            self._indexes += self._indexes_of(stream, chunk, moved)
        if self._sink.size == 0 and start == len(footer.MAGIC):
            # With the beginning of the file: a store copies no range after so few bytes, so some MiB would be read and sent.
            self._sink.copy(stream, 0, end)
        else:
            self._begin()
            self._sink.copy(stream, start, end - start)
        _move_all(group, moved)
        return end - start

    def _begin(self) -> None:
        if self._sink.size == 0:
            self._sink.write(footer.MAGIC)

    def close(self) -> None:
        """Write the page indexes and the footer."""
        self._begin()
        for indexes in self._indexes:
            indexes.chunk.set_i64(footer.COLUMN_INDEX, self._sink.size)
            indexes.chunk.set_i32(footer.COLUMN_INDEX_LENGTH, len(indexes.column))
            self._sink.write(indexes.column)
        for indexes in self._indexes:
            indexes.chunk.set_i64(footer.OFFSET_INDEX, self._sink.size)
            indexes.chunk.set_i32(footer.OFFSET_INDEX_LENGTH, len(indexes.offset))
            self._sink.write(indexes.offset)
        self._footer.change(footer.ROW_GROUPS, ThriftList(self._footer[footer.ROW_GROUPS].type, self._groups))
        self._footer.change(footer.ROWS, sum(g[footer.GROUP_ROWS] for g in self._groups))
        content = footer.encode(self._footer)
        self._sink.write(content + len(content).to_bytes(4, "little") + footer.MAGIC)

    def _indexes_of(self, stream: Any, chunk: Struct, moved: int) -> Iterator[_Indexes]:
        """The page indexes of a chunk, if it has both. The chunk names none any more."""
        places = [chunk.get(n) for n in (footer.COLUMN_INDEX, footer.COLUMN_INDEX_LENGTH)]
        places += [chunk.get(n) for n in (footer.OFFSET_INDEX, footer.OFFSET_INDEX_LENGTH)]
        chunk.remove(footer.COLUMN_INDEX, footer.COLUMN_INDEX_LENGTH, footer.OFFSET_INDEX, footer.OFFSET_INDEX_LENGTH)
        if any(place is None for place in places):
            return
        stream.seek(places[0])
        column = bytes(stream.read(places[1]))
        stream.seek(places[2])
        offset = footer.decode(bytes(stream.read(places[3])))
        for page in offset[footer.PAGES].items:
            page.change(footer.PAGE_OFFSET, page[footer.PAGE_OFFSET] + moved)
        yield _Indexes(chunk, column, footer.encode(offset))


def _move_all(group: Struct, by: int) -> None:
    """Move a row group to another place of a file. It has no Bloom filters any more: they are outside of it."""
    _move(group, by, footer.GROUP_OFFSET)
    for chunk in group[footer.COLUMNS].items:
        _move(chunk, by, footer.CHUNK_OFFSET)
        data = chunk[footer.CHUNK_DATA]
        _move(data, by, footer.DATA_PAGE, footer.INDEX_PAGE, footer.DICTIONARY_PAGE)
        data.remove(footer.BLOOM, footer.BLOOM_LENGTH)


def _move(struct: Struct, by: int, *numbers: int) -> None:
    for number in numbers:
        if struct.get(number):  # 0: the writer left it out
            struct.change(number, struct[number] + by)
