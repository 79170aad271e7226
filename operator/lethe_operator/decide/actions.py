"""What is to be done, as values. `apply` carries it out; nothing here does. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from lethe.contract.run import RunSpec
from lethe.guards.claim import Owner
from lethe.ledger.ledger import BufferedObject

from lethe_operator.resources.observed import NO_FAILURES, Attempt, Failures, Place
from lethe_operator.resources.restatement import SecretFile


@dataclass(frozen=True)
class Launch:
    """Start a run. `bytes` is how much it has to read, for its size; `for_uid` the Restatement it serves, if any; `by_committer`:
    the one of the namespace carries it out, else a Job; `failures`: of earlier attempts of the run; `secrets`: what its pod is to
    find; `place`: it starts only if one of these is free when it does."""

    run: RunSpec
    bytes: int
    generation: int
    why: str
    for_uid: str = ""
    by_committer: bool = False
    failures: Failures = NO_FAILURES
    secrets: tuple[SecretFile, ...] = ()
    place: Place | None = None


@dataclass(frozen=True)
class Event:
    """`kind` and `name` of the resource it is about; `warning` or normal."""

    kind: str
    name: str
    reason: str
    message: str
    warning: bool = False


@dataclass(frozen=True)
class Actions:
    """Statuses are whole documents, compared with what is there before anything is written. `policy_entries`: the
    Dataset's entry in the status of each VacuumPolicy that selects it; `remind`: attempts that the committer is to be asked for
    once more; `withdraw`: keys to take out of its mailbox."""

    dataset_status: Mapping[str, Any] | None = None
    restatement_statuses: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    policy_entries: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    launches: tuple[Launch, ...] = ()
    remind: tuple[Attempt, ...] = ()
    withdraw: tuple[str, ...] = ()
    sweep: tuple[BufferedObject, ...] = ()  # to be deleted from the buffer, if `owner` holds its claim
    owner: Owner | None = None  # as whom the Dataset claims its buffer; None: nothing is to be deleted
    delete_jobs: tuple[str, ...] = ()
    drop_keys: tuple[str, ...] = ()
    delete_restatements: tuple[str, ...] = ()
    events: tuple[Event, ...] = ()
    look_again: datetime | None = None


def earliest(*times: datetime | None) -> datetime | None:
    """The first of those that are set."""
    return min((t for t in times if t is not None), default=None)
