"""The requests of the acts that are Restatements, as runs get them. Pure."""

from collections.abc import Callable

from lethe.contract.run import ColumnRedaction, ConditionRef, Redaction, Replacement, RestatementRequest, RowsRef
from lethe.contract.settings import RedactionMethod, UnknownBatches

from tests.model.acts import Change, Erase, EraseRows, Redact, Replay, Request, Revert, Undo, request_name
from tests.support.builders import a_request

EVICT_BY = 60  # seconds; less than the vacuum's lead of a day, so an Erase is due at once


def request_of(act: Request, input_of: Callable[[Request], str]) -> RestatementRequest:
    """The request of an act.

    Args:
        input_of: Returns the file with the marks of an EraseRows or a Redact, or the URI of the rows of a Replay or a Change.
    """
    name = request_name(act)
    match act:
        case Revert(ids):
            return a_request(name, batch_ids=ids, unknown_batches=UnknownBatches.ALLOW)
        case Erase(ids):
            return a_request(
                name, "Erase", batch_ids=ids, evict_by_seconds=EVICT_BY, unknown_batches=UnknownBatches.ALLOW
            )
        case EraseRows():
            rows = RowsRef(conditions=(ConditionRef(column="name", values_file=input_of(act)),))
            return a_request(name, "Erase", batch_ids=(), rows=rows, evict_by_seconds=EVICT_BY)
        case Redact():
            rows = RowsRef(conditions=(ConditionRef(column="name", values_file=input_of(act)),))
            null = Redaction(columns=(ColumnRedaction(column="name", method=RedactionMethod.SET_NULL),))
            return a_request(name, "Redact", batch_ids=(), rows=rows, redact=null, evict_by_seconds=EVICT_BY)
        case Replay(ids, by):
            replacement = Replacement(batch_id=by, uri=input_of(act))
            return a_request(
                name, "Replay", batch_ids=ids, replacement=replacement, unknown_batches=UnknownBatches.ALLOW
            )
        case Change(_, by):
            replacement = Replacement(batch_id=by, uri=input_of(act), key_columns=("v",), op_column="op")
            return a_request(name, "Replay", batch_ids=(), replacement=replacement)
        case Undo(of):
            return a_request(name, "Undo", batch_ids=(), undoes=request_of(of, input_of).key)
