"""The rows of `lethe status`. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Final

Document = Mapping[str, Any]
HEADERS: Final = ("RESOURCE", "STATE", "REASON", "BATCHES", "WAITING", "DETAIL")
WIDE: Final = ("AGE", "MESSAGE")


def rows(found: Sequence[tuple[str, Document]], now: datetime, wide: bool) -> Iterator[list[str]]:
    """One row for each resource.

    Args:
        found: Kinds, and resources.
        wide: Whether to add the columns of `WIDE`.
    """
    for kind, document in found:
        status = document.get("status") or {}
        ready: Document = next((c for c in status.get("conditions") or () if c.get("type") == "Ready"), {})
        state = str(
            status.get("phase") or {"True": "Ready", "False": "NotReady"}.get(str(ready.get("status")), "Pending")
        )
        row = [f"{kind}/{document['metadata']['name']}", state, str(ready.get("reason") or "")]
        row += [_number(status, "batches", "promoted"), _number(status, "buffer", "batches"), _detail(kind, document)]
        yield (
            [*row, age(document["metadata"].get("creationTimestamp"), now), str(ready.get("message") or "")]
            if wide
            else row
        )


def _detail(kind: str, document: Document) -> str:
    status = document.get("status") or {}
    if kind == "restatement":
        spec = document["spec"]
        return f"{spec['operation']} of {spec['datasetRef']['name']} {status.get('progress', '')}".strip()
    if kind == "vacuumpolicy":
        return f"{status.get('datasetsCount', 0)} datasets"
    parts = [
        f"{p} {(status.get(p) or {}).get('reason')}"
        for p in ("consolidation", "vacuum")
        if (status.get(p) or {}).get("reason")
    ]
    return ", ".join(parts)


def _number(status: Document, part: str, key: str) -> str:
    value = (status.get(part) or {}).get(key)
    return "" if value is None else str(value)


def age(since: str | None, now: datetime) -> str:
    """The time since then, as kubectl prints it: 5s, 3m, 7h, 2d; "" without one."""
    if not since:
        return ""
    seconds = max(int((now - datetime.fromisoformat(since)) / timedelta(seconds=1)), 0)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * size:
            return f"{seconds // size}{unit}"
    return f"{seconds}s"
