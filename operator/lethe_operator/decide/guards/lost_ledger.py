"""Whether somebody has accepted a head that leads to no ledger although the table had one. Pure.

To accept it means: the table continues with its last ledger. What was erased or taken back stays so, no batch is promoted a
second time, and rows of such batches in the new files are hidden again.
"""

from lethe_operator.resources.common import ACCEPT_HEAD
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import LostLedger


def stopped(dataset: Dataset, lost: LostLedger) -> str:
    """Why nothing may go on."""
    meta = dataset.meta
    if lost.last_ledger is None:
        return (
            f"{lost.message} The last ledger is not known here: name it by a commit, as docs/foreign-writers.md says under "
            "LedgerLost."
        )
    if is_accepted(dataset, lost):
        return f"{lost.message} The head was accepted: a run gives it the ledger {lost.last_ledger}."
    return (
        f"{lost.message} To continue with the ledger {lost.last_ledger}: kubectl annotate datasets.lethe.dev {meta.name} -n "
        f"{meta.namespace} --overwrite {ACCEPT_HEAD}={lost.head_id} (what was erased or taken back stays so; batches that were "
        "promoted are not promoted again, so Replay those whose rows the head does not have)."
    )


def is_accepted(dataset: Dataset, lost: LostLedger) -> bool:
    """Whether the annotation names the head."""
    return dataset.meta.annotations.get(ACCEPT_HEAD) == str(lost.head_id)
