"""ETags of answers, and the comparison with If-None-Match. Pure.

An ETag is weak: two answers are the same if they differ only in when they were read.

How fresh an answer is. Pure.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from lethe.contract.schema import ApiModel

from lethe_gateway.ids import SnapshotIdText

# Parts of `freshness` that change although nothing else does.
_CLOCK: Final = frozenset({"readTime"})


def etag_of(document: Mapping[str, Any]) -> str:
    """The ETag of an answer, which does not depend on its freshness.

    Args:
        document: The body of an answer, as JSON values.
    """
    kept = dict(document)
    if isinstance(freshness := kept.get("freshness"), Mapping):
        kept["freshness"] = {k: v for k, v in freshness.items() if k not in _CLOCK}
    content = json.dumps(kept, sort_keys=True, separators=(",", ":")).encode()
    return f'W/"{hashlib.blake2b(content, digest_size=16).hexdigest()}"'


def is_current(if_none_match: str, etag: str) -> bool:
    """Whether a client that sends this header has the answer already."""
    known = {tag.strip().removeprefix("W/") for tag in if_none_match.split(",")}
    return "*" in known or etag.removeprefix("W/") in known


class ResourceFreshness(ApiModel):
    """Of an answer from the API server."""

    read_time: datetime
    """When the resources were read."""
    resource_version: str | None = None
    """The version of the resource or the list."""


class TableFreshness(SnapshotIdText):
    """Of an answer from a table of batches and a ledger."""

    read_time: datetime
    """When the catalog was last asked for the current state of the table."""
    snapshot_id: int | None = None
    """The snapshot of the table of batches that is shown. Absent: it is empty."""
    ledger_version: int | None = None
    """The version of the ledger that the table of batches shows."""
    head_ledger_version: int
    """The version of the ledger of the table's head."""
    commits_behind: int | None = None
    """Commits of the ledger that the table of batches does not show yet. Absent: it shows another lineage."""
    listed_time: datetime | None = None
    """When a consolidation last listed the buffer: buffered batches are as of then."""


def commits_behind(shown: int | None, head: int) -> int | None:
    """None: the version that is shown is unknown, or newer than that of the head, as after a rollback of the table."""
    return head - shown if shown is not None and shown <= head else None
