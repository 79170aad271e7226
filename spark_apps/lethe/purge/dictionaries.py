"""Which columns of a file have dictionaries. Pure.

Texts that a file has in a dictionary are read as numbers into it: filtering them and writing them again needs no text of a row.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from lethe.purge import footer
from lethe.purge.footer import Struct
from lethe.purge.splicing import groups_of

# Numbers of parquet.thrift.
_DATA_PAGES: Final = (0, 3)
_DICTIONARY_ENCODINGS: Final = (2, 8)


@dataclass(frozen=True)
class DictionaryColumns:
    """Columns by their encoding. Paths."""

    # All pages of these refer to a dictionary.
    whole: frozenset[str]
    # At least one page of these may refer to one.
    some: frozenset[str]


def dictionary_columns(found: Struct) -> DictionaryColumns:
    """The columns of a footer that have dictionaries. Unless it counts the pages by encoding, they are unknown."""
    whole: dict[str, bool] = {}
    some: dict[str, bool] = {}
    for group in groups_of(found):
        for chunk in group[footer.COLUMNS].items:
            data = chunk[footer.CHUNK_DATA]
            path = b".".join(data[footer.PATH].items).decode()
            encodings = set(_encodings(data))
            whole[path] = whole.get(path, True) and bool(encodings) and encodings <= set(_DICTIONARY_ENCODINGS)
            some[path] = some.get(path, False) or not encodings or not encodings.isdisjoint(_DICTIONARY_ENCODINGS)
    return DictionaryColumns(*(frozenset(p for p, has in of.items() if has) for of in (whole, some)))


def _encodings(data: Struct) -> Iterator[int]:
    """Of the data pages of a column chunk."""
    counts = data.get(footer.ENCODING_STATS)
    for one in counts.items if counts is not None else ():
        if one[footer.PAGE_TYPE] in _DATA_PAGES and one[footer.PAGE_COUNT]:
            yield one[footer.PAGE_ENCODING]
