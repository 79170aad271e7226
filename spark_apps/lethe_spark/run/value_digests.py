"""Keyed digests of the values by which Erases name records. I/O: reads the mounted values and the mounted key.

The chart creates the Secret with the key, and the pods of the runs that need it mount this Secret.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from lethe.contract.run import RestatementRequest
from lethe.restatement.values_digest import values_digest

KEY_FILE_VARIABLE: Final = "LETHE_VALUES_DIGEST_KEY_FILE"


def with_digests(requests: Sequence[RestatementRequest]) -> tuple[RestatementRequest, ...]:
    """The requests, with the digest of the values of Erases by records; empty if the values or the key cannot be read."""
    key = _read(os.environ.get(KEY_FILE_VARIABLE, ""))
    return tuple(_digested(r, key) for r in requests)


def batch_ids_digest(batch_ids: Iterable[str]) -> str:
    """The keyed digest of the batch ids of an erasure, one id per line; empty without ids or without a key."""
    content = "\n".join(batch_ids).encode()
    return values_digest(content, _read(os.environ.get(KEY_FILE_VARIABLE, ""))) if content else ""


def _digested(request: RestatementRequest, key: bytes) -> RestatementRequest:
    if request.rows is None:
        return request
    content = _read(request.rows.values_file)
    digest = values_digest(content, key) if content else ""
    return request.model_copy(update={"rows": request.rows.model_copy(update={"values_digest": digest})})


def _read(path: str) -> bytes:
    """The content of a file; empty, if there is no path or the file cannot be read."""
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        return b""
