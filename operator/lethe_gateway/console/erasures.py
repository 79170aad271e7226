"""Pages of erasures: what is due, what blocks it, and the records."""

from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from lethe_operator.kube import DATASETS

from lethe_gateway.api.batches import erasure_page, record_of
from lethe_gateway.api.parameters import CallerOf, Cursor, DatasetName, Namespace, ResourceName, ServicesOf
from lethe_gateway.console import pages
from lethe_gateway.lookup import readable, scanned
from lethe_gateway.problems import not_found
from lethe_gateway.resources.datasets import summary_of

router = APIRouter(include_in_schema=False)
PAGE: Final = 100


@router.get("/console/{namespace}/erasures")
def list_open(
    request: Request, services: ServicesOf, caller: CallerOf, namespace: Namespace, cursor: Cursor = ""
) -> Response:
    """The Datasets with open erasures."""

    def chosen(resource: dict[str, Any]) -> list[Any]:
        dataset = summary_of(resource)
        return [dataset] if dataset.erasures.open else []

    found = scanned(services, caller, DATASETS, namespace, (PAGE, cursor, {"erasures": "open"}), chosen)
    return pages.page(
        request,
        "open_erasures.html",
        namespace=namespace,
        section="erasures",
        datasets=found["items"],
        next_cursor=found["next_cursor"],
        is_first=not cursor,
    )


@router.get("/console/{namespace}/datasets/{dataset}/erasures")
def list_erasures(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    open_only: Annotated[bool, Query(alias="open")] = False,
    cursor: Cursor = "",
) -> Response:
    """The erasures of a Dataset: those that are open, and those that were verified."""
    target = readable(services, caller, namespace, dataset)
    question = {"console": "erasures", "table": str(target), "open": open_only}
    found = erasure_page(services, target, open_only, question, cursor, PAGE)
    return pages.page(
        request,
        "erasures.html",
        namespace=namespace,
        section="erasures",
        dataset=dataset,
        erasures=found.items,
        freshness=found.freshness,
        open_only=open_only,
        next_cursor=found.next_cursor,
        is_first=not cursor,
    )


@router.get("/console/{namespace}/datasets/{dataset}/erasures/{restatement}")
def show_erasure(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    restatement: ResourceName,
) -> Response:
    """The erasures of one Restatement with their records, each compared with its hash in the ledger now."""
    target = readable(services, caller, namespace, dataset)
    with services.tables.view(target) as view:
        records = [record_of(view, known) for known in view.erasures_named(f"{namespace}/{restatement}")]
        freshness = view.freshness
    if not records:
        raise not_found()
    return pages.page(
        request,
        "erasure.html",
        namespace=namespace,
        section="erasures",
        dataset=dataset,
        restatement=restatement,
        records=records,
        freshness=freshness,
    )
