"""Who requests an Erase with a subject, as annotations of the Restatement say it. Pure.

Kubernetes does not store the user of a request with the object. The admission policies of the chart's value admission.eraseRight
compare these annotations with the user who creates the Restatement, and refuse later changes. Without them, they prove nothing.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lethe.contract.kubernetes import REQUESTED_BY, REQUESTED_BY_GROUPS


@dataclass(frozen=True)
class Requester:
    """A user, as the API server knows it."""

    username: str
    groups: tuple[str, ...] = ()

    @property
    def annotations(self) -> dict[str, str]:
        """The annotations of a Restatement of this user. The expression of the admission policy writes the same text."""
        groups = json.dumps(self.groups, ensure_ascii=False, separators=(",", ":"))
        return {REQUESTED_BY: self.username, REQUESTED_BY_GROUPS: groups}

    @classmethod
    def of(cls, username: str, groups: Sequence[str]) -> "Requester":
        """The requester of a review or a token."""
        return cls(username, tuple(groups))

    @classmethod
    def of_annotations(cls, annotations: Mapping[str, Any]) -> "Requester | None":
        """Read the annotations. None: one of them is missing or not valid."""
        username, text = annotations.get(REQUESTED_BY), annotations.get(REQUESTED_BY_GROUPS)
        if not isinstance(username, str) or not username or not isinstance(text, str):
            return None
        try:
            groups = json.loads(text)
        except ValueError:
            return None
        if not isinstance(groups, list) or not all(isinstance(g, str) for g in groups):
            return None
        return cls(username, tuple(groups))
