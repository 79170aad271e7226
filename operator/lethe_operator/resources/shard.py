"""Which of several operators of a release watches a namespace. Pure."""

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Shard:
    """One of the parts into which a release divides its watched namespaces."""

    index: int  # from 0
    count: int  # of all shards

    def of(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        """The namespaces of this shard. The answer for a namespace depends on its name and the number of shards alone."""
        return tuple(n for n in namespaces if _number(n) % self.count == self.index)


ONLY_SHARD: Final = Shard(0, 1)


def _number(namespace: str) -> int:
    return int.from_bytes(hashlib.sha256(namespace.encode()).digest()[:8])
