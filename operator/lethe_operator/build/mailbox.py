"""Entries of the mailboxes of the committer and the warm driver, and the note that one was written. Pure."""

from datetime import datetime

from lethe.contract.kind import RunFamily
from lethe.contract.run import DatasetRef, MailboxEntry, RunSpec

from lethe_operator.build import names
from lethe_operator.resources.dispatch import Dispatch
from lethe_operator.resources.engine import Engine


def dispatch(run: RunSpec, generation: int, for_uid: str, engine: Engine, now: datetime) -> Dispatch:
    """The note about an attempt that a process of the namespace gets now; `generation` and `for_uid` as for a Job."""
    return Dispatch(
        name=run.attempt_name,
        run_id=run.run_id,
        family=run.family,
        attempt=run.attempt,
        generation=generation,
        for_uid=for_uid,
        created_time=now,
        engine=engine,
    )


def entry(
    dataset: DatasetRef, run_id: str, family: RunFamily, attempt: int, created: datetime, cancelled: bool = False
) -> MailboxEntry:
    return MailboxEntry(
        dataset_uid=dataset.uid,
        run_id=run_id,
        family=family,
        attempt=attempt,
        config_map=names.shared(dataset.name),
        prefix=names.key_prefix(run_id),
        created_time=created,
        cancelled=cancelled or None,
    )
