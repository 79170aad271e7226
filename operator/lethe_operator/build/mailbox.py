"""What stands in the committer's mailbox, and what is noted of it. Pure."""

from datetime import datetime

from lethe.contract.kind import RunFamily
from lethe.contract.run import DatasetRef, MailboxEntry, RunSpec

from lethe_operator.build import names
from lethe_operator.resources.dispatch import Dispatch


def dispatch(run: RunSpec, generation: int, for_uid: str, now: datetime) -> Dispatch:
    """The note of an attempt that is asked for now; `generation` and `for_uid` as of a Job."""
    return Dispatch(
        name=names.job(run),
        run_id=run.run_id,
        family=run.family,
        attempt=run.attempt,
        generation=generation,
        for_uid=for_uid,
        created_time=now,
    )


def entry(dataset: DatasetRef, run_id: str, family: RunFamily, attempt: int, created: datetime) -> MailboxEntry:
    return MailboxEntry(
        dataset_uid=dataset.uid,
        run_id=run_id,
        family=family,
        attempt=attempt,
        config_map=names.shared(dataset.name),
        prefix=names.key_prefix(run_id),
        created_time=created,
    )
