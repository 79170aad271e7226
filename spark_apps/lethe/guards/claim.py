"""The claim of a buffer: an object in it that names the only Dataset whose runs may move and delete objects there. Pure.

A claim identifies the Dataset by its UID, which is unique across clusters. A Dataset that was deleted and created again, as
GitOps tools do, has a new UID. It takes over its former claim if namespace, name, table and cluster are the same.
"""

import json
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any, Final

from lethe.base import names
from lethe.contract.run import DatasetRef
from lethe.contract.settings import BufferLayout

VERSION: Final = "lethe.dev/claim/v1"
ADOPTED_AT_MOST: Final = 1000  # adopted objects whose names a claim lists


@dataclass(frozen=True)
class Owner:
    """The Dataset that owns a claim, or wants to."""

    namespace: str
    name: str
    uid: str
    table_uuid: str  # "": the table does not exist yet
    cluster: str = ""  # the id of the cluster; "": unknown

    @classmethod
    def of(cls, dataset: DatasetRef, table_uuid: str) -> "Owner":
        return cls(dataset.namespace, dataset.name, dataset.uid, table_uuid, dataset.cluster)

    def __str__(self) -> str:
        cluster = f" of cluster {self.cluster}" if self.cluster else ""
        return f"Dataset {self.namespace}/{self.name} (UID {self.uid}, table {self.table_uuid}){cluster}"


@dataclass(frozen=True)
class Claim:
    """The content of the claim object."""

    owner: Owner | None  # None: the content cannot be read, so the buffer belongs to an unknown owner


class Holder(StrEnum):
    """Who owns a buffer, as seen by one Dataset."""

    NONE = "none"
    OURS = "ours"
    TAKEN_OVER = "taken over"  # by us; the claim still names the Dataset's former UID or table
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
        found = json.loads(content)
        of, table = found["dataset"], found["table"]
        texts = (of["namespace"], of["name"], of["uid"], table["uuid"], found.get("cluster", ""))
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return Claim(None)
    if found.get("apiVersion") != VERSION or not all(isinstance(t, str) for t in texts) or not of["uid"]:
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
