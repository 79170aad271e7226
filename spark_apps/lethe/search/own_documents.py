"""Recognizes the files that Lethe itself writes beside a table, by their content. Pure: bytes in.

Their names do not count: any file may have such a name. These files contain no rows: ids of batches, paths, counts and digests.
"""

import hashlib
import io
import json
from collections.abc import Mapping
from typing import Any, Final

import fastavro

from lethe.base import names
from lethe.contract.kind import RunKind
from lethe.contract.result import Progress, result_model
from lethe.contract.run import RunSpec
from lethe.erasure.record import canonical
from lethe.ledger.avro import FORMATS

BYTES_AT_MOST: Final = 64 * 2**20
_AVRO: Final = b"Obj\x01"
_ROOT: Final = frozenset({"format-version", "table-uuid", "ledger-version", "run", "statistics", "parts", "locations"})
_NOTE: Final = frozenset({"format-version", "run", "attempt", "folder", "sequence-number", "batch-ids"})
_STAGE: Final = frozenset({"batches", "refused", "missing"})
_CURSOR: Final = frozenset({"format-version", "dataset", "table-uuid", "epoch", "at", "step"})
_SIGNATURE: Final = frozenset({"format-version", "algorithm", "key-id", "statement", "signature"})
_RECORD: Final = frozenset(
    {"format-version", "table", "restatement", "request", "purge", "expired-snapshots", "files", "files-count"}
    | {"files-bytes", "files-sha256", "verified", "not-covered"}
)
_MODELS: Final = (RunSpec, Progress, *(result_model(kind) for kind in RunKind))
_RUN_DOCUMENTS: Final = tuple(
    frozenset(field.alias or name for name, field in model.model_fields.items()) for model in _MODELS
)


def is_own(path: str, content: bytes) -> bool:
    """Whether a file in one of Lethe's folders beside a table has the form of what Lethe writes there."""
    folders, _, name = path.rpartition("/")
    parts = folders.split("/")
    if names.LEDGER_FOLDER in parts[-1:] and content.startswith(_AVRO):
        return _is_chunk(content)
    document = _json(content)
    if document is None:
        return False
    keys = document.keys()
    match parts[-1:]:
        case [names.LEDGER_FOLDER]:
            return keys == _ROOT
        case [names.RUNS_FOLDER]:
            return keys in (_NOTE, _STAGE) or any("runId" in keys and keys <= known for known in _RUN_DOCUMENTS)
        case [names.ERASURES_FOLDER] if keys == _SIGNATURE:
            return canonical(document) == content
        case [names.ERASURES_FOLDER]:
            digest = hashlib.sha256(content).hexdigest()[:16]
            return keys == _RECORD and name.endswith(f"-{digest}.json")
        case _:
            return names.EVENTS_FOLDER in parts[-2:] and keys <= _CURSOR and "table-uuid" in keys


def is_checksum(content: bytes, file_bytes: int) -> bool:
    """Whether it is the checksum file that Hadoop writes beside a local file of this size."""
    if content[:4] != b"crc\0" or len(content) < 8:
        return False
    chunk = int.from_bytes(content[4:8], "big")
    return chunk > 0 and len(content) == 8 + 4 * -(-file_bytes // chunk)


def _is_chunk(content: bytes) -> bool:
    try:
        schema: Any = fastavro.reader(io.BytesIO(content)).writer_schema
        fields = {f["name"] for f in schema["fields"]}
    except Exception:
        return False
    return any(
        schema["name"] == known.schema["name"] and fields <= {f["name"] for f in known.schema["fields"]}
        for known in FORMATS.values()
    )


def _json(content: bytes) -> Mapping[str, Any] | None:
    try:
        document = json.loads(content)
    except (ValueError, RecursionError):
        return None
    return document if isinstance(document, dict) else None
