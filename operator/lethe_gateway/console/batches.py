"""Pages of batches: the list, and the history of one."""

from datetime import UTC, datetime, timedelta
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from lethe.base.ids import MAX_BATCH_ID_LENGTH

from lethe_gateway.api.batches import batch_page
from lethe_gateway.api.documents import batch_answer
from lethe_gateway.api.parameters import CallerOf, Cursor, DatasetName, Namespace, ServicesOf, invalid
from lethe_gateway.console import pages
from lethe_gateway.identity.caller import Right
from lethe_gateway.lookup import readable
from lethe_gateway.problems import not_found
from lethe_gateway.tables.records import BatchQuery
from lethe_gateway.tables.schema import BatchState

router = APIRouter(include_in_schema=False)
PAGE: Final = 100
_DAY: Final = r"^(\d{4}-\d{2}-\d{2})?$"


@router.get("/console/{namespace}/datasets/{dataset}/batches")
def list_batches(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    state: Annotated[list[BatchState] | None, Query()] = None,
    prefix: Annotated[str, Query(max_length=MAX_BATCH_ID_LENGTH)] = "",
    since: Annotated[str, Query(pattern=_DAY)] = "",
    until: Annotated[str, Query(pattern=_DAY)] = "",
    cursor: Cursor = "",
) -> Response:
    """The batches of a Dataset, the newest first. The days are in UTC; `until` is the last one."""
    target = readable(services, caller, namespace, dataset)
    states = tuple(dict.fromkeys(str(s) for s in state or ()))
    begin, end = _day("since", since), _day("until", until)
    following = end + timedelta(days=1) if end is not None else None
    filters = {"state": sorted(states), "prefix": prefix, "since": since, "until": until}
    question = {"console": "batches", "table": str(target), **filters}
    found = batch_page(services, target, BatchQuery(states, begin, following, prefix), question, cursor, PAGE)
    return pages.page(
        request,
        "batches.html",
        namespace=namespace,
        section="datasets",
        dataset=dataset,
        batches=found.items,
        freshness=found.freshness,
        states=[str(s) for s in BatchState],
        filters=filters,
        next_cursor=found.next_cursor,
        is_first=not cursor,
        may_restate=services.identity.may(caller, Right.to_restate(namespace)),
    )


@router.get("/console/{namespace}/datasets/{dataset}/batch")
def show_batch(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    id: Annotated[str, Query(min_length=1, max_length=MAX_BATCH_ID_LENGTH)],
) -> Response:
    """One batch with its history."""
    target = readable(services, caller, namespace, dataset)
    with services.tables.view(target) as view:
        facts = view.batch(id)
        if facts is None:
            raise not_found()
        batch = batch_answer(facts, view.freshness)
    return pages.page(request, "batch.html", namespace=namespace, section="datasets", dataset=dataset, batch=batch)


def _day(name: str, text: str) -> datetime | None:
    """The beginning of a day in UTC. Raises: Problem (`invalid-request`)."""
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) if text else None
    except ValueError:
        raise invalid(name, "a day such as 2026-03-01") from None
