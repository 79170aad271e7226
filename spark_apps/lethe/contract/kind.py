"""The kinds of runs. Pure.

To add a kind, start here: mypy then reports every `match` that must cover it.
`tests/unit/test_closed_sets.py` checks that run documents and the labels of Jobs preserve each kind.
"""

from enum import Enum, StrEnum
from typing import assert_never


class RunFamily(StrEnum):
    """The name of a kind in run documents, results, labels, Job names, snapshot summaries, statuses, events and metrics.

    These names must not change: active runs of an earlier version use them. Kinds that were added later share the name of a
    family; the content of the document, or the annotation of the Job, distinguishes them.
    """

    CONSOLIDATION = "Consolidation"
    RESTATEMENT = "Restatement"
    VACUUM = "Vacuum"


class RunKind(Enum):
    """The kind of a run. The values are explanations; use `kind.family` as a name."""

    CONSOLIDATION = "promote batches"
    REANCHORING = "give a ledger to a head without one; a Consolidation document without batch ids"
    RESTATEMENT = "carry out Restatements, or plan them"
    VACUUM = "purge, expire, maintain, or plan that"
    ERASURE_CHECK = "check the open erasures; a Vacuum document with erasuresOnly"

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
        """Whether a run of this kind may make several commits."""
        match self:
            case RunKind.VACUUM | RunKind.ERASURE_CHECK:
                return True
            case RunKind.CONSOLIDATION | RunKind.REANCHORING | RunKind.RESTATEMENT:
                return False
            case _:
                assert_never(self)
