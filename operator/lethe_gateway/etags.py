"""ETags of answers, and the comparison with If-None-Match. Pure.

An ETag is weak: two answers are the same if they differ only in when they were read.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Final

# Parts of `freshness` that change although nothing else does.
_CLOCK: Final = frozenset({"readTime"})


def etag_of(document: Mapping[str, Any]) -> str:
    """Args:
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
