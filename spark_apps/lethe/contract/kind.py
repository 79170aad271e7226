"""What runs are for. Pure.

A new kind starts here: mypy then reports every `match` that has to handle it.
`tests/unit/test_closed_sets.py` checks that each kind survives its way through a run document and the labels of a Job.
"""

from enum import Enum, StrEnum
from typing import assert_never


class RunFamily(StrEnum):
    """The name of a kind in run documents, results, labels, Job names, snapshot summaries, statuses, events and metrics.

    These names are a contract, also with runs in flight of an earlier version. A kind that was split off later keeps the name
    of its family; the content of the document, or the annotation of the Job, tells the two kinds apart.
    """

    CONSOLIDATION = "Consolidation"
    RESTATEMENT = "Restatement"
    VACUUM = "Vacuum"


class RunKind(Enum):
    """The kind of a run. It is no text: write `kind.family` where a name is needed."""

    CONSOLIDATION = "promote batches"
    REANCHORING = "give a head without a ledger one; a Consolidation document without batch ids"
    RESTATEMENT = "carry out Restatements, or plan them"
    VACUUM = "purge, expire, maintain, or plan that"
    ERASURE_CHECK = "see how far erasures have come; a Vacuum document with erasuresOnly"

    @property
    def family(self) -> RunFamily:
        match self:
            case RunKind.CONSOLIDATION | RunKind.REANCHORING:
                return RunFamily.CONSOLIDATION
            case RunKind.RESTATEMENT:
                return RunFamily.RESTATEMENT
            case RunKind.VACUUM | RunKind.ERASURE_CHECK:
                return RunFamily.VACUUM
            case _:
                assert_never(self)

    @property
    def commits_in_steps(self) -> bool:
        """Whether a run that has committed may still have work to do."""
        match self:
            case RunKind.VACUUM | RunKind.ERASURE_CHECK:
                return True
            case RunKind.CONSOLIDATION | RunKind.REANCHORING | RunKind.RESTATEMENT:
                return False
            case _:
                assert_never(self)
