"""Decides whether a buffer, a replacement or a list must not be used: it is local, part of a table, or claimed. Pure.

The operator checks before it starts a run or deletes, and the run checks again. Messages contain URIs, declared names and
names of files, but never the content of a file.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, assert_never

from lethe.base.errors import InputError
from lethe.guards.claim import Claim, Holder, Owner, holder_of, rejected
from lethe.uri import contains, is_local, overlap

NAMED_AT_MOST: Final = 3

BUFFER_LOCAL: Final = "BufferLocal"
BUFFER_HOLDS_TABLE: Final = "BufferHoldsTable"
BUFFER_HOLDS_OTHER_OBJECTS: Final = "BufferHoldsOtherObjects"
BUFFER_CLAIMED: Final = "BufferClaimed"
BUFFER_REASONS: Final = frozenset({BUFFER_LOCAL, BUFFER_HOLDS_TABLE, BUFFER_HOLDS_OTHER_OBJECTS, BUFFER_CLAIMED})


@dataclass(frozen=True)
class Rejection:
    """Why a URI must not be used."""

    reason: str
    message: str  # a sentence, without the name of the Dataset or Restatement in front

    def error(self) -> InputError:
        return InputError(self.reason, self.message)


@dataclass(frozen=True)
class Around:
    """Facts about a buffer besides its content."""

    tables: tuple[str, ...] = ()  # URIs of folders at or above the buffer that contain metadata of an Iceberg table
    claim: Claim | None = None  # None: the buffer has none


@dataclass(frozen=True)
class Contents:
    """The folders and files of a buffer that are not batches, by their names below it."""

    unrelated: int = 0  # their number
    unrelated_names: Sequence[str] = ()  # the first of them
    tables: Sequence[str] = ()  # the first of those that are part of an Iceberg table


def local(field: str, uri: str, catalog: str, catalog_is_local: bool) -> str | None:
    """Why a local URI must not be used; None: it may, or it is not local."""
    if not is_local(uri) or catalog_is_local:
        return None
    return (
        f"{field} {uri} is a local folder of the machine of a run, but the catalog {catalog} is not on that "
        "machine. A file: URI is allowed only with a local catalog. Use an object store."
    )


def in_table(field: str, uri: str, tables: Iterable[str]) -> str | None:
    """Why a URI must not be used; None: no table is at, above or below it.

    Args:
        field: The subject of the message.
        tables: URIs of folders that belong to tables.
    """
    return found_in(field, uri, [t for t in tables if overlap(t, uri)])


def found_in(field: str, uri: str, found: Sequence[str]) -> str | None:
    """Why a URI must not be used; None: `found` is empty.

    Args:
        field: The subject of the message.
        found: URIs of tables' folders at, above or below the URI. A symbolic link may make them look unrelated.
    """
    if not found:
        return None
    return (
        f"{field} {uri} is inside, equal to or above {_some(found)}, which belongs to an Iceberg table. Use a "
        "location that does not overlap with a table."
    )


def above_warehouse(field: str, uri: str, warehouses: Iterable[str]) -> str | None:
    """Why a URI must not be used; None: it neither is nor contains the root folder of a catalog's tables."""
    found = [w for w in warehouses if w and contains(uri, w)]
    if not found:
        return None
    return (
        f"{field} {uri} is or contains {_some(found)}, where a catalog keeps its tables. Use a location outside of it."
    )


def buffer_rejection(
    uri: str, owner: Owner, around: Around, contents: Contents, adopt: bool, warehouses: Collection[str] = ()
) -> Rejection | None:
    """Why a buffer must not be used; None: it may.

    Args:
        owner: The Dataset that wants to use it.
        adopt: spec.buffer.adopt: use an unclaimed buffer although it contains objects that are not batches.
        warehouses: URIs below which catalogs keep their tables.
    """
    held = above_warehouse("spec.buffer.uri", uri, warehouses) or found_in("spec.buffer.uri", uri, around.tables)
    if held is None and contents.tables:
        held = (
            f"spec.buffer.uri {uri} holds files of an Iceberg table ({_some(contents.tables)}). Use a "
            "location that does not overlap with a table."
        )
    if held is not None:
        return Rejection(BUFFER_HOLDS_TABLE, f"{held} Nothing in it was moved or deleted.")
    holder = holder_of(around.claim, owner)
    match holder:
        case Holder.OTHERS:
            assert around.claim is not None
            return Rejection(BUFFER_CLAIMED, rejected(around.claim, uri))
        case Holder.NONE if contents.unrelated and not adopt:
            return Rejection(
                BUFFER_HOLDS_OTHER_OBJECTS,
                f"spec.buffer.uri {uri} holds {contents.unrelated} folders or files that are not batches "
                f"({_some(contents.unrelated_names, contents.unrelated)}), so it may belong to somebody else. "
                "Nothing in it was moved or deleted. Move them elsewhere, use another buffer, or set "
                "spec.buffer.adopt to true to accept them beside the batches.",
            )
        case Holder.NONE | Holder.OURS | Holder.TAKEN_OVER:
            return None
        case _:
            assert_never(holder)


def _some(values: Sequence[str], total: int | None = None) -> str:
    more = (total if total is not None else len(values)) - min(len(values), NAMED_AT_MOST)
    return ", ".join(values[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")
