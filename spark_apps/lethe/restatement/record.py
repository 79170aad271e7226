"""What a ledger remembers of a request, and what is told of it. Pure.

The ledger keeps all batch ids of a request: an Undo names the request alone, and the ids are then found without a walk
over every batch of the table. Whoever is told the result is not told the ids.
"""

from datetime import datetime

from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.ledger.ledger import Ledger, RequestEntry


def remembered(
    ledger: Ledger, request: RestatementRequest, result: RequestResult, run: str, now: datetime
) -> RequestEntry:
    """The entry of a request that is being carried out on a ledger."""
    kept = result.model_copy(
        update={
            "operation": request.operation,
            "batch_ids": tuple(dict.fromkeys(request.batch_ids)),
            "ledger_version": ledger.version + 1,
            "provenance": request.provenance,
        }
    )
    return RequestEntry(request.key, run, now, kept.model_dump(mode="json", by_alias=True, exclude_none=True))


def version_of(entry: RequestEntry) -> int:
    """The ledger version that its commit made: it orders requests, whatever the clocks of their runs said. 0 for a request from
    before this was kept: it is older than any with a version, and the order among those is unknown."""
    return int(entry.result.get("ledgerVersion") or 0)


def recalled(entry: RequestEntry) -> RequestResult:
    """The whole result as the ledger has it."""
    return RequestResult.model_validate(dict(entry.result))


def told(result: RequestResult) -> RequestResult:
    """The result without what only the ledger keeps: the list of batch ids, which may be long and which the asker knows, a
    digest, the ledger version and who asked."""
    return result.model_copy(
        update={"batch_ids": (), "values_digest": None, "ledger_version": None, "provenance": None}
    )


def name_of(key: str) -> str:
    """`namespace/name` of a request key: the hash behind it says nothing to people."""
    return key.rpartition("/")[0] or key
