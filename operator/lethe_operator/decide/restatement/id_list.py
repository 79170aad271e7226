"""Whether the list of batch ids in a Restatement's spec.batchIdsFrom is usable. Pure."""

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from lethe.base.errors import InputError
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.restatement.id_list import IdList, changed

from lethe_operator.decide.conditions import UNKNOWN
from lethe_operator.decide.restatement.assessment import Assessment, RestatementPhase, stalled
from lethe_operator.resources.restatement import NoList, Restatement


def without_list(restatement: Restatement, earlier: RestatementRequest | None, now: datetime) -> Assessment | None:
    """The assessment of a Restatement whose list is missing, invalid or changed; None: the list is usable, or there is none.

    Args:
        earlier: Its request in the document of an earlier run, which has the list's digest even if the status was not written;
            None: there is no earlier run.
    """
    found = restatement.listed
    if isinstance(found, NoList):
        if found.final:
            return stalled(found.reason, found.message, final=True)
        again = now + timedelta(seconds=found.again_seconds)
        return Assessment(RestatementPhase.PENDING, UNKNOWN, found.reason, found.message, look_again=again)
    first = restatement.list_sha256 or (earlier.batch_ids_sha256 if earlier is not None else "")
    if found is None or not first or found.sha256 == first:
        return None
    error: InputError = changed(f"Restatement {restatement.meta.name}: spec.batchIdsFrom", first, found.sha256)
    return stalled(error.reason, error.message, final=True)


def seen(found: IdList | RestatementRequest | RequestResult | NoList | None) -> Mapping[str, Any]:
    """The part of `status.plan` that identifies the list that was read; empty if none was read."""
    match found:
        case IdList():
            return {"batchIds": {"count": len(found.ids), "sha256": found.sha256}}
        case RestatementRequest() if found.batch_ids_sha256 and found.batch_ids:
            return {"batchIds": {"count": len(found.batch_ids), "sha256": found.batch_ids_sha256}}
        case RequestResult() if found.batch_ids_sha256:
            return {"batchIds": {"count": found.batch_ids_count or 0, "sha256": found.batch_ids_sha256}}
    return {}
