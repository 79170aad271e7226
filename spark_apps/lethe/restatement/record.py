"""The result of a request as the ledger stores it, and as a run reports it. Pure.

The ledger stores all batch ids of a request. An Undo names only the request, and so finds the ids without reading all batches of
the table. A reported result does not contain them.

A keyed digest of the values of an Erase by records, to compare the values of a repeated request. Pure.

The ledger stores the digest and never the values. The key is in a Secret of the cluster and not beside the table. Without the
key, it is impossible to test guessed values against the digest, even if there are few possible values.
"""

import hashlib
import hmac
from datetime import datetime
from typing import Final

from lethe.base.errors import InputError
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
    """The version of the ledger that the commit of the request made.

    It orders requests independently of the clocks of runs. 0: the request was committed by a version of Lethe that did not store
    it. Such requests are older than all others, and their order is unknown.
    """
    return int(entry.result.get("ledgerVersion") or 0)


def recalled(entry: RequestEntry) -> RequestResult:
    """The complete result in the ledger."""
    return RequestResult.model_validate(dict(entry.result))


def reported(result: RequestResult) -> RequestResult:
    """The result as a run reports it: without the fields that are only for the ledger.

    The list of batch ids may be long, and the user knows it.
    """
    only_in_ledger = ("values_digest", "ledger_version", "provenance", "replacement_uri", "replacement_batch_id")
    return result.model_copy(update={"batch_ids": (), **dict.fromkeys(only_in_ledger)})


def name_of(key: str) -> str:
    """`namespace/name` of a request key, for messages: without the hash at its end."""
    return key.rpartition("/")[0] or key


KEY_BYTES_AT_LEAST: Final = 16


def values_digest(content: bytes, key: bytes) -> str:
    """`<id of the key>:<HMAC-SHA256 of the distinct lines>`; "" if there is no key, or one of fewer than 16 bytes.

    Args:
        content: As for `lethe.files.values.parse_values`. The order of lines and blank lines do not matter.
    """
    if len(key) < KEY_BYTES_AT_LEAST:
        return ""
    lines = {line.removesuffix(b"\r") for line in content.removeprefix(b"\xef\xbb\xbf").split(b"\n")}
    values = b"\n".join(sorted(line for line in lines if line.strip()))
    key_id = hashlib.sha256(b"lethe values digest\n" + key).hexdigest()[:8]
    return f"{key_id}:{hmac.new(key, values, hashlib.sha256).hexdigest()}"


def refuse_other_values(request: RestatementRequest, before: RequestResult) -> None:
    """Refuse an Erase by records whose key is in the ledger, unless its values are those that were erased.

    Args:
        before: The result in the ledger.

    Raises:
        InputError: `ValuesChanged`, if the values differ. `ValuesNotComparable`, if that is unknown.
    """
    if request.rows is None or before.requested_time == request.creation_time:
        return
    now, then = request.rows.values_digest, before.values_digest
    if now and now == then:
        return
    where, name = f"Restatement {request.name}: spec.rows.valuesFrom", "Create a Restatement with another name"
    done = f"the Restatement with this name and spec that was carried out at {before.committed_time:%Y-%m-%dT%H:%MZ}"
    if now and then and now.partition(":")[0] == then.partition(":")[0]:
        raise InputError(
            "ValuesChanged",
            f"{where}: the values differ from those of {done}. Nothing was searched or erased. {name} for "
            "these values.",
        )
    why = (
        "this run has no key to compare them with (the chart's value erase.digestKey)"
        if not now
        else "the ledger has no digest of them"
        if not then
        else "the digest in the ledger was made with another key"
    )
    raise InputError(
        "ValuesNotComparable",
        f"{where}: the values cannot be compared with those of {done}: {why}. Nothing was erased. {name} to "
        "search for them.",
    )
