"""Whose runs a Job carries out that several Datasets share, as the Job itself says it. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lethe_operator.resources.common import Spec

# On the Job and its pod: `true` when several Datasets share it; who they are; and for each of them a label by which it finds
# the Job, until it has no more need of it.
LABEL_SHARED: Final = "lethe.dev/shared"
ANNOTATION_MEMBERS: Final = "lethe.dev/members"
MEMBER_PREFIX: Final = "member.lethe.dev/"


class Member(Spec):
    """One Dataset's run within a shared Job. `generation` is the Dataset's when it was launched."""

    dataset: str
    uid: str
    run_id: str
    attempt: int
    generation: int


@dataclass(frozen=True)
class SharedJob:
    """`over`: its driver is gone for good; `needed_by`: UIDs of the Datasets that still find it."""

    name: str
    over: bool
    members: tuple[Member, ...]
    needed_by: frozenset[str]


def member_label(uid: str) -> str:
    """The label's key of a Dataset; it fits, since a UID has 36 characters and a label's name may have 63."""
    return f"{MEMBER_PREFIX}{uid}"


def written(members: Sequence[Member]) -> str:
    """The annotation's value."""
    return json.dumps([m.model_dump(by_alias=True) for m in members], separators=(",", ":"))


def members_of(metadata: Mapping[str, Any]) -> tuple[Member, ...]:
    """Of an object's metadata; empty when it is not shared."""
    text = (metadata.get("annotations") or {}).get(ANNOTATION_MEMBERS)
    return tuple(Member.model_validate(m) for m in json.loads(text)) if text else ()


def needed_by(metadata: Mapping[str, Any]) -> frozenset[str]:
    """UIDs of the Datasets that still find the Job."""
    labels = metadata.get("labels") or {}
    return frozenset(key.removeprefix(MEMBER_PREFIX) for key in labels if key.startswith(MEMBER_PREFIX))
