"""Identities: batch ids and their folder names, run ids, request keys, derived Kubernetes names.

Pure: strings in, strings out. The results must never change, because tables store them.
"""

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import quote, unquote

from lethe.base.errors import InputError

MAX_BATCH_ID_LENGTH = 256
FORMAT_EXTENSIONS: Final = (".parquet", ".orc", ".avro", ".json", ".jsonl", ".ndjson", ".csv")
"""The extensions of batch files. A batch id may contain dots, so any other ending is part of the id."""
COMPRESSION_EXTENSIONS: Final = (".gz", ".zst", ".bz2", ".lz4")

NOT_PART_OF_A_REQUEST = frozenset({"suspend", "cancel", "deadlineSeconds", "ttlSecondsAfterFinished"})


def batch_folder(column: str, batch_id: str) -> str:
    """The folder name of a batch in a buffer: `<column>=<percent-encoded id>`."""
    return f"{column}={quote(batch_id, safe='')}"


def batch_id_of_folder(column: str, folder: str) -> str | None:
    """The batch id in a folder name; None: the folder is not `<column>=<id>`.

    Raises:
        InputError: `InvalidBatchId`, if the id is empty, longer than 256 characters or not valid UTF-8.
    """
    prefix = f"{column}="
    if not folder.startswith(prefix):
        return None
    return _batch_id(folder[len(prefix) :], f"the folder {folder[:80]!r}")


def batch_file(batch_id: str, extension: str) -> str:
    """The name of a file that is a whole batch: `<percent-encoded id><extension>`. It never begins with `_` or `.`.

    Args:
        extension: One of `FORMAT_EXTENSIONS`, with or without one of `COMPRESSION_EXTENSIONS` after it.
    """
    encoded = quote(batch_id, safe="")
    if encoded.startswith(("_", ".")):
        encoded = f"%{ord(encoded[0]):02X}{encoded[1:]}"
    return encoded + extension


def batch_id_of_file(name: str) -> str:
    """The batch id in a file name, which is the name without the extensions of a compression and of a format.

    Raises:
        InputError: `InvalidBatchId`, as `batch_id_of_folder`.
    """
    stem = _without(name, COMPRESSION_EXTENSIONS)
    return _batch_id(_without(stem, FORMAT_EXTENSIONS), f"the file {name[:80]!r}")


def _without(name: str, extensions: Iterable[str]) -> str:
    lowered = name.lower()
    return next((name[: -len(e)] for e in extensions if lowered.endswith(e)), name)


def _batch_id(encoded: str, named: str) -> str:
    try:
        batch_id = unquote(encoded, errors="strict")
    except UnicodeDecodeError as e:
        raise InputError("InvalidBatchId", f"{named} is not percent-encoded UTF-8") from e
    if not 1 <= len(batch_id) <= MAX_BATCH_ID_LENGTH:
        raise InputError("InvalidBatchId", f"{named} names a batch id of {len(batch_id)} characters, expected 1 to 256")
    return batch_id


def run_id(dataset_uid: str, kind: str, keys: Iterable[str]) -> str:
    """The deterministic run id: 32 hex digits of SHA-256 over the UID of the Dataset, the kind, and the sorted keys."""
    document = json.dumps([dataset_uid, kind, sorted(keys)], ensure_ascii=True, separators=(",", ":"))
    return hashlib.sha256(document.encode()).hexdigest()[:32]


def request_key(namespace: str, name: str, spec: Mapping[str, Any]) -> str:
    """The key of a Restatement in a ledger: `namespace/name/sha256(spec without suspend, cancel, deadline, TTL)`.

    If GitOps creates the object again with the same spec, it has the same key.
    """
    kept = {k: v for k, v in spec.items() if k not in NOT_PART_OF_A_REQUEST and v is not None}
    document = json.dumps(kept, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"{namespace}/{name}/{hashlib.sha256(document.encode()).hexdigest()}"


def kube_name(*parts: str, limit: int = 63) -> str:
    """Join `parts` to a DNS label of at most `limit` characters.

    If the name was cut or changed, it ends with a hash of the original: `a.b` and `a-b` stay different.
    """
    whole = "-".join(parts).lower()
    name = whole.replace("_", "-").replace(".", "-")
    if name == whole and len(name) <= limit:
        return name
    digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
    return f"{name[: limit - 9].rstrip('-')}-{digest}"
