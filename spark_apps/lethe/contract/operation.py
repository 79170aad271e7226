"""What a Restatement may ask for. Pure.

A new operation starts here: mypy then reports every `match` that has to handle it.
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
        """Whether naming batches is enough to carry it out: it then writes no data and reads none."""
        match self:
            case Operation.REVERT | Operation.ERASE | Operation.UNDO:
                return True
            case Operation.REPLAY:
                return False
            case _:
                assert_never(self)

    @property
    def always_evicts(self) -> bool:
        """Whether the bytes of its rows must leave the storage even if the request sets no deadline."""
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
# As a ledger keeps it. None: an earlier version did not keep it, or a later version has an operation that this one does not know.
RecordedOperation = Annotated[Operation | None, BeforeValidator(_known)]
