"""Which Datasets share a Job, read from and written to the Job's labels and annotations. Pure."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lethe_operator.resources.common import Spec

# On the Job and its pod.
LABEL_SHARED: Final = "lethe.dev/shared"  # "true": several Datasets share the Job
ANNOTATION_MEMBERS: Final = "lethe.dev/members"  # the Datasets and their runs, as JSON
# Prefix of one label per Dataset, by which the operator finds the Job. It removes the label when the Dataset no longer needs the
# Job.
MEMBER_PREFIX: Final = "member.lethe.dev/"


class Member(Spec):
    """One Dataset's run within a shared Job."""

    dataset: str
    uid: str  # of the Dataset
    run_id: str
    attempt: int
    generation: int  # the Dataset's at launch


@dataclass(frozen=True)
class SharedJob:
    name: str
    over: bool  # the driver has ended and does not start again
    members: tuple[Member, ...]
    needed_by: frozenset[str]  # UIDs of the Datasets that have a label on the Job


def member_label(uid: str) -> str:
    """The key of a Dataset's label. It is never too long: a UID has 36 characters, and the name part may have 63."""
    return f"{MEMBER_PREFIX}{uid}"


def written(members: Sequence[Member]) -> str:
    """The value of the annotation ANNOTATION_MEMBERS."""
    return json.dumps([m.model_dump(by_alias=True) for m in members], separators=(",", ":"))


def members_of(metadata: Mapping[str, Any]) -> tuple[Member, ...]:
    """The members of the Job with this metadata; empty if the Job is not shared."""
    text = (metadata.get("annotations") or {}).get(ANNOTATION_MEMBERS)
    return tuple(Member.model_validate(m) for m in json.loads(text)) if text else ()


def needed_by(metadata: Mapping[str, Any]) -> frozenset[str]:
    """UIDs of the Datasets that have a label on the Job."""
    labels = metadata.get("labels") or {}
    return frozenset(key.removeprefix(MEMBER_PREFIX) for key in labels if key.startswith(MEMBER_PREFIX))
