"""The result of a request as the ledger stores it, and as a run reports it. Pure.

The ledger stores all batch ids of a request. An Undo names only the request, and so finds the ids without reading all batches of
the table. A reported result does not contain them.
"""

from datetime import datetime

from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import Ledger, RequestEntry


def remembered(
    ledger: Ledger, request: RestatementRequest, result: RequestResult, run: str, now: datetime
) -> RequestEntry:
    """The entry of a request in the next version of this ledger."""
    replacement = None if result.replacement_withheld else request.replacement
    kept = result.model_copy(
        update={
            "replacement_uri": replacement.uri if replacement is not None else None,
            "replacement_batch_id": replacement.batch_id if replacement is not None else None,
            "operation": request.operation,
            "batch_ids": tuple(dict.fromkeys(request.batch_ids)),
            "ledger_version": ledger.version + 1,
            "provenance": request.provenance,
        }
    )
    return RequestEntry(request.key, run, now, kept.model_dump(mode="json", by_alias=True, exclude_none=True))


def version_of(entry: RequestEntry) -> int:
    """The version of the ledger that the commit of the request made. It orders requests independently of the clocks of runs.
    0: the request was committed by a version of Lethe that did not store it. Such requests are older than all others, and their
    order is unknown."""
    return int(entry.result.get("ledgerVersion") or 0)


def recalled(entry: RequestEntry) -> RequestResult:
    """The complete result in the ledger."""
    return RequestResult.model_validate(dict(entry.result))


def reported(result: RequestResult) -> RequestResult:
    """The result as a run reports it: without the fields that are only for the ledger. The list of batch ids may be long, and the
    user knows it."""
    only_in_ledger = ("values_digest", "ledger_version", "provenance", "replacement_uri", "replacement_batch_id")
    return result.model_copy(update={"batch_ids": (), **dict.fromkeys(only_in_ledger)})


def name_of(key: str) -> str:
    """`namespace/name` of a request key, for messages: without the hash at its end."""
    return key.rpartition("/")[0] or key
