"""Pages of Datasets."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from lethe_operator.kube import DATASETS

from lethe_gateway.api.parameters import CallerOf, Cursor, DatasetName, Namespace, ServicesOf
from lethe_gateway.console import attention, charts, pages
from lethe_gateway.freshness import TableFreshness
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.lookup import dataset_resource, readable, scanned
from lethe_gateway.problems import Problem
from lethe_gateway.resources.datasets import dataset_of, summary_of
from lethe_gateway.services import Services

router = APIRouter(include_in_schema=False)
PAGE: Final = 100
DAYS: Final = 30
ACTIVE_SECONDS: Final = 3
IDLE_SECONDS: Final = 30


@dataclass(frozen=True)
class TablePart:
    """What a page shows of a table; or why it cannot."""

    promotions: charts.BarChart | None = None
    files: int | None = None  # data files of the head; None: unknown
    bytes: int | None = None  # of these files; None: unknown
    freshness: TableFreshness | None = None
    problem: str = ""


@router.get("/console/{namespace}/datasets")
def list_datasets(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    name: Annotated[str, Query(max_length=253)] = "",
    cursor: Cursor = "",
) -> Response:
    """The Datasets of a namespace, a page at a time."""

    def chosen(resource: dict[str, Any]) -> list[Any]:
        return [summary_of(resource)] if name in resource["metadata"]["name"] else []

    found = scanned(services, caller, DATASETS, namespace, (PAGE, cursor, {"name": name}), chosen)
    return pages.page(
        request,
        "datasets.html",
        namespace=namespace,
        section="datasets",
        datasets=found["items"],
        next_cursor=found["next_cursor"],
        is_first=not cursor,
        name=name,
    )


@router.get("/console/{namespace}/datasets/{dataset}")
def show_dataset(
    request: Request, services: ServicesOf, caller: CallerOf, namespace: Namespace, dataset: DatasetName
) -> Response:
    """One Dataset: what waits, what was promoted, tombstones, files, the next vacuum, and runs."""
    body = dataset_resource(services, caller, namespace, dataset)
    shown = dataset_of(body)
    may = services.identity.may
    return pages.page(
        request,
        "dataset.html",
        namespace=namespace,
        section="datasets",
        dataset=shown,
        attention=attention.of_dataset(body),
        table=_table(services, caller, namespace, dataset),
        may_annotate=may(caller, Right.to_annotate(namespace, dataset)),
        may_restate=may(caller, Right.to_restate(namespace)),
        invalid_folders=_invalid_folders(body),
        refresh_seconds=ACTIVE_SECONDS if shown.active_runs else IDLE_SECONDS,
    )


def _invalid_folders(resource: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list(((resource.get("status") or {}).get("buffer") or {}).get("invalidFolders") or ())


def _table(services: Services, caller: Caller, namespace: str, dataset: str) -> TablePart:
    now = services.now()
    try:
        target = readable(services, caller, namespace, dataset)
        with services.tables.view(target) as view:
            counts = dict(view.promotions(now - timedelta(days=DAYS)))
            files, size = view.head_files
            return TablePart(charts.per_day(counts, now, DAYS), files, size, view.freshness)
    except Problem as e:
        return TablePart(problem=e.detail)
