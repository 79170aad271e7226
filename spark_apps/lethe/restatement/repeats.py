"""Which Restatements failed and were not repeated with success since. Pure.

The console and `lethe status` both call a Restatement failed by this.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

FAILED: Final = frozenset({"Failed", "RolledBack"})
"""The phases of what is not part of the table, although somebody wants it."""
_SELECTION: Final = (
    "operation",
    "batchIds",
    "batchIdsFrom",
    "selector",
    "rows",
    "undoes",
    "subject",
    "datasetSelector",
)


@dataclass(frozen=True, slots=True)
class Request:
    """What tells whether a Restatement failed, and whether it repeats another one."""

    name: str
    created: str
    """As Kubernetes writes times, so that their order is that of the texts."""
    phase: str
    """"": it has none yet."""
    is_dry_run: bool
    selection: str
    """The Dataset, the operation and what is selected: those of a repetition are the same."""


def request_of(restatement: Mapping[str, Any]) -> Request:
    """The request of a Restatement, as a document of the API server."""
    metadata, spec = restatement["metadata"], restatement.get("spec") or {}
    return Request(
        name=str(metadata["name"]),
        created=str(metadata.get("creationTimestamp") or ""),
        phase=str((restatement.get("status") or {}).get("phase") or ""),
        is_dry_run=bool(spec.get("dryRun")),
        selection=_selection(spec),
    )


def repetitions(requests: Iterable[Request]) -> dict[str, str]:
    """The failed requests that a later one with the same selection has repeated with success, each with that one's name.

    A dry run changes nothing, so it repeats only dry runs.
    """
    failed: list[Request] = []
    done: dict[tuple[str, bool], Request] = {}
    for request in requests:
        if request.phase in FAILED:
            failed.append(request)
        elif request.phase == "Succeeded":
            for dry in {request.is_dry_run, True}:
                latest = done.get((request.selection, dry))
                if latest is None or latest.created < request.created:
                    done[request.selection, dry] = request
    pairs = ((f, done.get((f.selection, f.is_dry_run))) for f in failed)
    return {f.name: by.name for f, by in pairs if by is not None and by.created >= f.created}


def _selection(spec: Mapping[str, Any]) -> str:
    """A digest that is equal for equal selections.

    The order of batch ids does not count, nor where a replacement comes from, nor what is written into redacted columns.
    """
    parts = {name: spec[name] for name in _SELECTION if spec.get(name)}
    if isinstance(ids := parts.get("batchIds"), list):
        parts["batchIds"] = sorted(map(str, ids))
    if replacement := spec.get("replacement"):
        parts["replacement"] = [replacement.get("batchId"), replacement.get("keyColumns")]
    if redact := spec.get("redact"):
        parts["redact"] = sorted(str(column.get("column")) for column in redact.get("columns") or ())
    parts["dataset"] = (spec.get("datasetRef") or {}).get("name")
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("utf-8", "surrogatepass")).hexdigest()
