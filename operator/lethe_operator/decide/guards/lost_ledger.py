"""Whether the user has accepted a head that leads to no ledger although the table had one. Pure.

The table then continues with its last ledger: erased and reverted batches stay so, no batch is promoted a second time, and rows
of such batches in the new files are hidden again.
"""

from lethe_operator.resources.common import ACCEPT_HEAD
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import LostLedger


def stopped(dataset: Dataset, lost: LostLedger) -> str:
    """Why no run starts, and what to do."""
    meta = dataset.meta
    if lost.last_ledger is None:
        return (
            f"{lost.message} The operator does not know the last ledger. Name it with a commit: see LedgerLost in "
            "docs/foreign-writers.md."
        )
    if is_accepted(dataset, lost):
        return f"{lost.message} The head is accepted: a run attaches the ledger {lost.last_ledger} to it."
    return (
        f"{lost.message} To continue with the ledger {lost.last_ledger}: kubectl annotate datasets.lethe.dev {meta.name} -n "
        f"{meta.namespace} --overwrite {ACCEPT_HEAD}={lost.head_id} (erased and reverted batches stay deleted; promoted "
        "batches are not promoted again, so Replay those whose rows the head does not contain)."
    )


def is_accepted(dataset: Dataset, lost: LostLedger) -> bool:
    """Whether the annotation names the head."""
    return dataset.meta.annotations.get(ACCEPT_HEAD) == str(lost.head_id)
