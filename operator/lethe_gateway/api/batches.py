"""Routes of batches and erasures: what is in the table of a Dataset."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Path, Query, Request
from lethe.base.names import MAX_BATCH_ID_LENGTH
from lethe.erasure.record import SIGNATURE_SUFFIX

from lethe_gateway import paging
from lethe_gateway.answers import answer, responses
from lethe_gateway.api.documents import (
    BatchAnswer,
    BatchPage,
    CallerOf,
    DatasetName,
    ErasureAnswer,
    ErasurePage,
    ErasureRecord,
    ListOf,
    Namespace,
    OpenFilter,
    ResourceName,
    ServicesOf,
    StateFilter,
    batch_answer,
    batch_summary,
    erasure_summary,
    utc,
)
from lethe_gateway.problems import Kind, not_found
from lethe_gateway.services import ListRequest, readable
from lethe_gateway.tables.indexed import IndexedTable
from lethe_gateway.tables.records import BatchPosition, BatchQuery, KnownErasure, TableTarget, micros

router = APIRouter(tags=["batches"])
MAX_RECORD_BYTES: Final = 16 << 20
_PROBLEMS: Final = responses(
    Kind.FORBIDDEN, Kind.NO_TABLE, Kind.NOT_TRACKED, Kind.TABLE_UNREADABLE, Kind.CATALOG_AWAY, Kind.INDEX_BUILDING
)
_RESTATEMENT_NAME: Final = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?/)?[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"


@router.get("/v1/namespaces/{namespace}/datasets/{dataset}/batches", responses=_PROBLEMS)
def list_batches(
    request: Request,
    asked: ListOf,
    namespace: Namespace,
    dataset: DatasetName,
    state: StateFilter = None,
    since: Annotated[
        datetime | None, Query(description="Only batches that reached their state at this time or later.")
    ] = None,
    until: Annotated[
        datetime | None, Query(description="Only batches that reached their state before this time.")
    ] = None,
    id_prefix: Annotated[
        str,
        Query(alias="idPrefix", max_length=MAX_BATCH_ID_LENGTH, description="Only batches whose ids begin with this."),
    ] = "",
    restatement: Annotated[
        str,
        Query(
            max_length=317,
            pattern=rf"{_RESTATEMENT_NAME}|^$",
            description="Only batches that this Restatement reverted, replaced, erased or added: its name, or namespace/name.",
        ),
    ] = "",
) -> BatchPage:
    """List the batches of a Dataset, newest first by the time of their state.

    A batch that changes its state moves to the front. Pages neither repeat nor leave out a batch that does not change meanwhile.
    """
    target = readable(asked.services, asked.caller, namespace, dataset)
    states = tuple(dict.fromkeys(str(s) for s in state or ()))
    named = restatement if not restatement or "/" in restatement else f"{namespace}/{restatement}"
    since, until = utc("since", since), utc("until", until)
    filters = {"states": sorted(states), "since": since, "until": until, "prefix": id_prefix, "restatement": named}
    question = {"batches": target.claim, "table": str(target), **filters}
    query = BatchQuery(states, since, until, id_prefix, named)
    return answer(request, batch_page(asked, target, query, question))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/datasets/{dataset}/batches/{batchId:path}", responses=_PROBLEMS)
def get_batch(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    batch_id: Annotated[
        str,
        Path(
            alias="batchId",
            min_length=1,
            max_length=MAX_BATCH_ID_LENGTH,
            description="The id of the batch, percent-encoded.",
        ),
    ],
) -> BatchAnswer:
    """Get one batch with its history: promoted, refused, held or taken back, by which Restatement and why, purged, and erased."""
    target = readable(services, caller, namespace, dataset)
    with services.tables.view(target) as view:
        facts = view.batch(batch_id)
        if facts is None:
            raise not_found()
        return answer(request, batch_answer(facts, view.freshness))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/datasets/{dataset}/erasures", responses=_PROBLEMS, tags=["erasures"])
def list_erasures(
    request: Request,
    asked: ListOf,
    namespace: Namespace,
    dataset: DatasetName,
    open_only: OpenFilter = False,
) -> ErasurePage:
    """List the erasures in the ledger of a Dataset: those that are open, and those that were verified."""
    target = readable(asked.services, asked.caller, namespace, dataset)
    question = {"erasures": target.claim, "table": str(target), "open": open_only}
    return answer(request, erasure_page(asked, target, open_only, question))  # type: ignore[return-value]


@router.get(
    "/v1/namespaces/{namespace}/datasets/{dataset}/erasures/{restatement}", responses=_PROBLEMS, tags=["erasures"]
)
def get_erasure(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    restatement: ResourceName,
) -> ErasureAnswer:
    """Get the erasures of one Restatement of the namespace, with their records.

    Each record is compared with its hash in the ledger. `lethe erasures verify` also checks signatures and the storage.
    """
    target = readable(services, caller, namespace, dataset)
    with services.tables.view(target) as view:
        erasures = view.erasures_named(f"{namespace}/{restatement}")
        if not erasures:
            raise not_found()
        items = [record_of(view, known) for known in erasures]
        return answer(request, ErasureAnswer(items=items, freshness=view.freshness))  # type: ignore[return-value]


def batch_page(asked: ListRequest, target: TableTarget, query: BatchQuery, question: Mapping[str, Any]) -> BatchPage:
    """A page of the batches of a table.

    Raises:
        Problem: The request fails; the type of the problem says why.

    Args:
        question: What was asked, to which the cursor belongs.
    """
    limit, cursor = asked.limit, asked.cursor
    after = BatchPosition(*paging.decode(cursor, question, int, str)) if cursor else None
    with asked.services.tables.view(target) as view:
        rows = view.batches(replace(query, after=after), limit + 1)
        shown = rows[:limit]
        last = [micros(shown[-1].state_time), shown[-1].batch_id] if len(rows) > limit else None
        return BatchPage(
            items=[batch_summary(r) for r in shown],
            next_cursor=paging.encode(last, question) if last else None,
            freshness=view.freshness,
        )


def erasure_page(asked: ListRequest, target: TableTarget, open_only: bool, question: Mapping[str, Any]) -> ErasurePage:
    """A page of the erasures of a table, as `batch_page`.

    Raises:
        Problem: The request fails; the type of the problem says why.
    """
    limit, cursor = asked.limit, asked.cursor
    after = str(paging.decode(cursor, question, str)[0]) if cursor else ""
    with asked.services.tables.view(target) as view:
        erasures = view.erasures(after, limit + 1, open_only)
        following = paging.encode([erasures[limit - 1].key], question) if len(erasures) > limit else None
        items = [erasure_summary(k) for k in erasures[:limit]]
        return ErasurePage(items=items, next_cursor=following, freshness=view.freshness)


def record_of(view: IndexedTable, known: KnownErasure) -> ErasureRecord:
    """An erasure with its record, compared with the hash in the ledger. Reads the record and its signature.

    Raises:
        Problem: The request fails; the type of the problem says why.
    """
    summary = erasure_summary(known)
    content = view.record(summary.record, MAX_RECORD_BYTES) if summary.record else None
    if content is None or summary.record is None:
        return ErasureRecord(erasure=summary, found=False)
    signature = f"{summary.record}{SIGNATURE_SUFFIX}"
    unchanged = hashlib.sha256(content).hexdigest() == summary.record_sha256
    return ErasureRecord(
        erasure=summary,
        found=True,
        unchanged=unchanged,
        signature=signature if view.record(signature, MAX_RECORD_BYTES) is not None else None,
        document=_object(content) if unchanged else None,  # otherwise it may be any file
    )


def _object(content: bytes) -> dict[str, Any] | None:
    try:
        document = json.loads(content)
    except ValueError:
        return None
    return document if isinstance(document, dict) else None
