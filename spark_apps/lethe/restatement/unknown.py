"""Batch ids that a Dataset does not know: which requests they make fail, and which known ids are similar. Pure.

Only ids that the caller has looked for everywhere count. The caller lists the buffer before it reads the ledger on which the
request is planned: a batch that is promoted in between is then found in one of the two, and never in neither.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final

from lethe.base.errors import InputError
from lethe.base.names import similar
from lethe.contract.run import RestatementRequest
from lethe.contract.settings import UnknownBatches
from lethe.ledger.ledger import Ledger, get_many

UNKNOWN_BATCHES: Final = "UnknownBatches"
"""The reason of the refusal."""
NAMED_AT_MOST: Final = 3
"""The unknown ids that a message names, and the similar ids that it names for each."""
COMPARED_AT_MOST: Final = 20_000
"""The most batches of a ledger whose ids are compared: comparing one id with these takes half a second."""


def unknown_ids_of(ledger: Ledger, requests: Sequence[RestatementRequest]) -> list[str]:
    """The batch ids, of requests that are not done, that the ledger does not know."""
    done = get_many(ledger.requests, [r.key for r in requests])
    return _not_in(ledger, [i for r in requests if r.key not in done for i in r.batch_ids])


def refuse_unknown(ledger: Ledger, request: RestatementRequest, absent: Collection[str]) -> None:
    """Refuse a request that names unknown batches, unless it may.

    Args:
        absent: Ids that are neither in the data files nor in the buffer.

    Raises:
        InputError: `UnknownBatches`.
    """
    if request.unknown_batches is UnknownBatches.ALLOW or not absent:
        return
    unknown = _not_in(ledger, [i for i in request.batch_ids if i in absent])
    if not unknown:
        return
    count = len(dict.fromkeys(request.batch_ids))
    # Lines of a list by reference are not shown: the reference may name the wrong file by mistake.
    named = "" if request.batch_ids_sha256 else f": {_named(unknown, _similar(ledger, unknown))}"
    raise InputError(
        UNKNOWN_BATCHES,
        f"Restatement {request.name}: {len(unknown)} of {count} batch ids are in neither the table nor the buffer{named}. "
        "Nothing was changed. Correct the ids in a new Restatement. To block batches that arrive later, set "
        "spec.unknownBatches to Allow (unknown_batches in Spark, --allow-unknown of the commands).",
    )


def refuse_absent(ledger: Ledger, request: RestatementRequest, in_files: Collection[str]) -> None:
    """Refuse a Redact that names batches that are not in the table: it would redact nothing of those that are promoted later.

    Args:
        in_files: Ids of which data files hold rows.

    Raises:
        InputError: `UnknownBatches`.
    """
    distinct_ids = dict.fromkeys(request.batch_ids)
    known = get_many(ledger.batches, distinct_ids)
    absent = [i for i in distinct_ids if i not in in_files and not (i in known and known[i].blocks_promotion)]
    if not absent:
        return
    named = "" if request.batch_ids_sha256 else f": {_named(absent, _similar(ledger, absent))}"
    raise InputError(
        UNKNOWN_BATCHES,
        f"Restatement {request.name}: {len(absent)} of {len(distinct_ids)} batch ids are not in the table{named}. Nothing was "
        "redacted. Correct the ids in a new Restatement, or create it after these batches are promoted.",
    )


def _not_in(ledger: Ledger, ids: Iterable[str]) -> list[str]:
    distinct_ids = dict.fromkeys(ids)
    known = get_many(ledger.batches, distinct_ids)
    return [i for i in distinct_ids if i not in known]


def _similar(ledger: Ledger, unknown: Sequence[str]) -> Mapping[str, Sequence[str]]:
    if len(ledger.batches) > COMPARED_AT_MOST:
        return {}
    known = list(ledger.batches)
    return {i: similar(i, known, NAMED_AT_MOST) for i in unknown[:NAMED_AT_MOST]}


def _named(unknown: Sequence[str], nearest: Mapping[str, Sequence[str]]) -> str:
    texts = [
        f"{i!r} (similar: {', '.join(map(repr, nearest[i]))})" if nearest.get(i) else repr(i)
        for i in unknown[:NAMED_AT_MOST]
    ]
    more = f" and {len(unknown) - NAMED_AT_MOST} more" if len(unknown) > NAMED_AT_MOST else ""
    return ", ".join(texts) + more
