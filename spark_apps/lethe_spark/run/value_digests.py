"""Keyed digests of the values that Erases name their records by. I/O: reads the mounted values and the mounted key.

The key is the operator's: the chart mounts it into the pods of runs that erase records.
"""

import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from lethe.contract.run import RestatementRequest
from lethe.restatement.values_digest import values_digest

KEY_FILE_VARIABLE: Final = "LETHE_VALUES_DIGEST_KEY_FILE"


def with_digests(requests: Sequence[RestatementRequest]) -> tuple[RestatementRequest, ...]:
    """The requests, those for records with the digest of their values. What cannot be read has none."""
    key = _read(os.environ.get(KEY_FILE_VARIABLE, ""))
    return tuple(_digested(r, key) for r in requests)


def batch_ids_digest(batch_ids: Iterable[str]) -> str:
    """Of the batches that an erasure is of, one a line; "" without a key, or of none."""
    content = "\n".join(batch_ids).encode()
    return values_digest(content, _read(os.environ.get(KEY_FILE_VARIABLE, ""))) if content else ""


def _digested(request: RestatementRequest, key: bytes) -> RestatementRequest:
    if request.rows is None:
        return request
    content = _read(request.rows.values_file)
    digest = values_digest(content, key) if content else ""
    return request.model_copy(update={"rows": request.rows.model_copy(update={"values_digest": digest})})


def _read(path: str) -> bytes:
    """Empty if there is no such file."""
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        return b""
