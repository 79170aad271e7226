"""The operations of a Restatement. Pure.

To add an operation, start here: mypy then reports every `match` that must cover it.
`tests/unit/test_closed_sets.py` compares the enum with the CRD, the chart and the reference.
"""

from enum import StrEnum
from typing import Annotated, Any, Final, assert_never

from pydantic import BeforeValidator


class Operation(StrEnum):
    """`spec.operation` of a Restatement."""

    REPLAY = "Replay"  # replace batches, or rows by key columns, with a new batch
    REVERT = "Revert"  # delete batches
    ERASE = "Erase"  # delete batches or records, and prove that their bytes are gone
    UNDO = "Undo"  # take a Revert back

    @property
    def is_metadata_only(self) -> bool:
        """Whether a request that names only batches is carried out without reading or writing data files."""
        match self:
            case Operation.REVERT | Operation.ERASE | Operation.UNDO:
                return True
            case Operation.REPLAY:
                return False
            case _:
                assert_never(self)

    @property
    def always_evicts(self) -> bool:
        """Whether its rows must be deleted from storage even if the request has no deadline."""
        match self:
            case Operation.ERASE:
                return True
            case Operation.REPLAY | Operation.REVERT | Operation.UNDO:
                return False
            case _:
                assert_never(self)


def _known(value: Any) -> Any:
    return value if value in _VALUES else None


_VALUES: Final = frozenset(Operation)
# The operation in a ledger. None: an earlier version did not store it, or this version does not know it.
RecordedOperation = Annotated[Operation | None, BeforeValidator(_known)]
