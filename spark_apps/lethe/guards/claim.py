"""Decides whether a buffer, a replacement or a list must not be used: it is local, part of a table, or claimed. Pure.

The operator checks before it starts a run or deletes, and the run checks again. Messages contain URIs, declared names and names
of files, but never the content of a file.
"""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final, assert_never

from lethe.base import names
from lethe.base.errors import Verdict
from lethe.contract.run import DatasetRef
from lethe.contract.settings import BufferLayout
from lethe.uri import contains, is_local, overlap

VERSION_HINT: Final = "version-hint.text"
_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_TABLE: Final = (".metadata.json", ".metadata.json.gz")
_METADATA: Final = re.compile(rf"snap-\d+-\d+-{_UUID}\.avro|{_UUID}-m\d+\.avro|optimized-m-{_UUID}\.avro")
_DATA: Final = re.compile(rf"\d{{5}}-\d+-{_UUID}(-\d{{5}})?(-(lethe-)?deletes)?\.(parquet|orc|avro|puffin)")

VERSION: Final = "lethe.dev/claim/v1"
ADOPTED_AT_MOST: Final = 1000
"""The most adopted objects whose names a claim lists."""

NAMED_AT_MOST: Final = 3

BUFFER_LOCAL: Final = "BufferLocal"
BUFFER_HOLDS_TABLE: Final = "BufferHoldsTable"
BUFFER_HOLDS_OTHER_OBJECTS: Final = "BufferHoldsOtherObjects"
BUFFER_CLAIMED: Final = "BufferClaimed"
BUFFER_REASONS: Final = frozenset({BUFFER_LOCAL, BUFFER_HOLDS_TABLE, BUFFER_HOLDS_OTHER_OBJECTS, BUFFER_CLAIMED})


def is_table_metadata(key: str) -> bool:
    """Whether a key names a metadata file, a version hint, a manifest or a manifest list.

    Only Iceberg writers use such names, so a table's folder is detected without reading a file.
    """
    if key.endswith(".parquet"):
        return False  # a shortcut: most files are Parquet
    name = key.rpartition("/")[2]
    return name.endswith(_TABLE) or name == VERSION_HINT or _METADATA.fullmatch(name) is not None


def is_table_data(key: str) -> bool:
    """Whether a key names a data or delete file by the pattern of Iceberg's writers."""
    return _DATA.fullmatch(key.rpartition("/")[2]) is not None


@dataclass(frozen=True)
class Owner:
    """The Dataset that owns a claim, or wants to."""

    namespace: str
    name: str
    uid: str
    table_uuid: str
    """Empty: the table does not exist yet."""
    cluster: str = ""
    """The id of the cluster; "": unknown."""

    @classmethod
    def of(cls, dataset: DatasetRef, table_uuid: str) -> "Owner":
        """The Dataset of a run as the owner of a claim.

        Args:
            table_uuid: "": the table does not exist yet.
        """
        return cls(dataset.namespace, dataset.name, dataset.uid, table_uuid, dataset.cluster)

    def __str__(self) -> str:
        cluster = f" of cluster {self.cluster}" if self.cluster else ""
        return f"Dataset {self.namespace}/{self.name} (UID {self.uid}, table {self.table_uuid}){cluster}"


@dataclass(frozen=True)
class Claim:
    """The content of the claim object.

    It identifies the Dataset by its UID, which is unique across clusters. A Dataset that was deleted and created again, as GitOps
    tools do, has a new UID. It takes over its former claim if namespace, name, table and cluster are the same.
    """

    owner: Owner | None
    """The owner that the claim names; None: the content cannot be read, so the owner is unknown."""


class Holder(StrEnum):
    """Who owns a buffer, as seen by one Dataset."""

    NONE = "none"
    OURS = "ours"
    TAKEN_OVER = "taken over"
    """By us; the claim still names the Dataset's former UID or table."""
    OTHERS = "others"


def holder_of(claim: Claim | None, owner: Owner) -> Holder:
    """Who owns a buffer, as seen by `owner`.

    Args:
        claim: None: the buffer has none.
    """
    if claim is None:
        return Holder.NONE
    held = claim.owner
    if held is None:
        return Holder.OTHERS
    if held == owner:
        return Holder.OURS
    if held.uid == owner.uid:
        return Holder.TAKEN_OVER if owner.table_uuid else Holder.OURS
    same = (held.namespace, held.name, held.cluster) == (owner.namespace, owner.name, owner.cluster)
    return Holder.TAKEN_OVER if same and owner.cluster and held.table_uuid == owner.table_uuid else Holder.OTHERS


def document(owner: Owner, layout: BufferLayout, adopted: tuple[str, ...], adopted_count: int, now: datetime) -> bytes:
    """The content of the claim object.

    Args:
        layout: spec.buffer.layout.
        adopted: Names below the buffer of objects that are not batches and existed when `spec.buffer.adopt` was set.
        adopted_count: The number of all such objects.
    """
    content: dict[str, Any] = {
        "apiVersion": VERSION,
        "dataset": {"namespace": owner.namespace, "name": owner.name, "uid": owner.uid},
        "table": {"uuid": owner.table_uuid},
        "cluster": owner.cluster,
        "layout": layout,
        "claimedTime": now.astimezone(UTC).isoformat(timespec="seconds").replace("+00:00", "Z"),
        "note": "This Dataset of Lethe owns the buffer. Delete this object to release it once the Dataset is gone.",
    }
    if adopted_count:
        content["adopted"] = {"count": adopted_count, "first": list(adopted[:ADOPTED_AT_MOST])}
    return (json.dumps(content, ensure_ascii=False, indent=2) + "\n").encode()


def parse(content: bytes) -> Claim:
    """Read an object named `_lethe.json`, which may have any content."""
    try:
        document = json.loads(content)
        dataset, table = document["dataset"], document["table"]
        texts = (dataset["namespace"], dataset["name"], dataset["uid"], table["uuid"], document.get("cluster", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Claim(None)
    if document.get("apiVersion") != VERSION or not all(isinstance(t, str) for t in texts) or not dataset["uid"]:
        return Claim(None)
    return Claim(Owner(*texts))


def rejected(claim: Claim, uri: str) -> str:
    """Why a buffer of another owner cannot be used."""
    whose = str(claim.owner) if claim.owner is not None else "an owner that this version of Lethe cannot read"
    return (
        f"the buffer {uri} belongs to {whose}, according to its object {names.CLAIM_FILE}. Lethe reads, moves "
        "and deletes nothing in it. Use another buffer. If that Dataset no longer exists, delete "
        f"{uri.rstrip('/')}/{names.CLAIM_FILE}."
    )


@dataclass(frozen=True)
class Around:
    """Facts about a buffer besides its content."""

    tables: tuple[str, ...] = ()
    """URIs of folders at or above the buffer that contain metadata of an Iceberg table."""
    claim: Claim | None = None
    """The claim of the buffer; None: it has none."""


@dataclass(frozen=True)
class Contents:
    """The folders and files of a buffer that are not batches, by their names below it."""

    unrelated: int = 0
    """Their number."""
    unrelated_names: Sequence[str] = ()
    """The first of them."""
    tables: Sequence[str] = ()
    """The first of those that are part of an Iceberg table."""


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


def found_in(field: str, uri: str, folders: Sequence[str]) -> str | None:
    """Why a URI must not be used; None: `folders` is empty.

    Args:
        field: The subject of the message.
        folders: URIs of tables' folders at, above or below the URI. A symbolic link may make them look unrelated.
    """
    if not folders:
        return None
    return (
        f"{field} {uri} is inside, equal to or above {_some(folders)}, which belongs to an Iceberg table. Use a "
        "location that does not overlap with a table."
    )


def above_warehouse(field: str, uri: str, warehouses: Iterable[str]) -> str | None:
    """Why a URI must not be used; None: it neither is nor contains the root folder of a catalog's tables."""
    below = [w for w in warehouses if w and contains(uri, w)]
    if not below:
        return None
    return (
        f"{field} {uri} is or contains {_some(below)}, where a catalog keeps its tables. Use a location outside of it."
    )


def buffer_rejection(
    uri: str, owner: Owner, around: Around, contents: Contents, adopt: bool, warehouses: Collection[str] = ()
) -> Verdict | None:
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
        return Verdict(BUFFER_HOLDS_TABLE, f"{held} Nothing in it was moved or deleted.")
    holder = holder_of(around.claim, owner)
    match holder:
        case Holder.OTHERS:
            assert around.claim is not None
            return Verdict(BUFFER_CLAIMED, rejected(around.claim, uri))
        case Holder.NONE if contents.unrelated and not adopt:
            return Verdict(
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
