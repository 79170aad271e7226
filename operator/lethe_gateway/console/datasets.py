"""Pages of Datasets.

Pages of batches: the list, and the history of one.

Pages of vacuums: what is planned, when, what it costs, and the approval.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from typing import Annotated, Any, Final, assert_never

from fastapi import APIRouter, Query, Request, Response
from lethe.base.names import MAX_BATCH_ID_LENGTH
from lethe.contract.dataset import HoldSpec, active_holds
from lethe.contract.kubernetes import APPROVE, VACUUM_NOW
from lethe.files.bounds import rule_at
from lethe.kube import DATASETS, VACUUM_POLICIES
from lethe_operator.resources.manifests import vacuum_now

from lethe_gateway.api.batches import batch_page
from lethe_gateway.api.documents import (
    CallerOf,
    DatasetName,
    DecisionFilter,
    Namespace,
    ResourceName,
    ServicesOf,
    StateFilter,
    batch_answer,
    invalid,
)
from lethe_gateway.console import attention, pages, text
from lethe_gateway.console.namespaces import namespace_of, rows_page
from lethe_gateway.console.pages import ConsoleListOf, FormOf
from lethe_gateway.console.rows import DatasetRow
from lethe_gateway.freshness import TableFreshness
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources.datasets import VacuumPolicyView, dataset_of, is_active, policy_of, vacuum_of
from lethe_gateway.services import Services, dataset_resource, readable, readable_table, scanned
from lethe_gateway.tables.records import BatchQuery, IndexedState

router = APIRouter(include_in_schema=False)


@router.get("/console/{namespace}/vacuums")
def list_vacuums(
    request: Request,
    asked: ConsoleListOf,
    decision: DecisionFilter = "",
) -> Response:
    """The next vacuum of each Dataset that a policy selects, and the policies."""
    known = namespace_of(asked.services, asked.caller, asked.namespace)
    chosen = [d for d in known.datasets if d.vacuum is not None and decision in ("", d.vacuum.decision)]
    filters = {"decision": decision}
    policies = scanned(replace(asked, cursor=""), VACUUM_POLICIES, {}, lambda p: [policy_of(p)])
    return rows_page(
        request,
        "vacuums.html",
        asked,
        known,
        chosen,
        dataset_name,
        filters,
        section="vacuums",
        policies={p.name: p for p in policies["items"]},
    )


@router.get("/console/{namespace}/datasets/{dataset}/vacuum")
def show_vacuum(
    request: Request, services: ServicesOf, caller: CallerOf, namespace: Namespace, dataset: DatasetName
) -> Response:
    """The next vacuum of a Dataset: plan, cost, window, and the form that approves it."""
    vacuum = vacuum_of(dataset_resource(services, caller, namespace, dataset))
    policy = _policy(services, caller, namespace, vacuum.policy)
    return pages.page(
        request,
        "vacuum.html",
        namespace=namespace,
        section="vacuums",
        vacuum=vacuum,
        policy=policy,
        may_annotate=services.identity.may(caller, Right.to_annotate(namespace, dataset)),
        refresh_seconds=3 if vacuum.decision in ("Due", "Running") else 30,
    )


@router.post("/console/{namespace}/datasets/{dataset}/vacuum/approve")
def approve(
    services: ServicesOf, caller: CallerOf, namespace: Namespace, dataset: DatasetName, form: FormOf
) -> Response:
    """Approve the plan that the page has shown, if it is still the plan."""
    vacuum = vacuum_of(dataset_resource(services, caller, namespace, dataset))
    shown = (form.get("plan") or ("",))[0]
    planned = vacuum.plan.digest if vacuum.plan is not None else None
    if not shown or shown != planned or vacuum.decision != "NeedsApproval":
        raise Problem(
            Kind.INVALID_REQUEST,
            "The plan has changed since the page was loaded. Look at the new plan, then approve it.",
        )
    _annotate(services, caller, namespace, dataset, APPROVE, shown)
    return pages.see(f"/console/{namespace}/datasets/{dataset}/vacuum")


@router.post("/console/{namespace}/datasets/{dataset}/vacuum/now")
def request_vacuum(
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    form: FormOf,  # noqa: ARG001
) -> Response:
    """Request a vacuum, whatever the triggers and the window of its policy say."""
    dataset_resource(services, caller, namespace, dataset)
    now: datetime = services.now()
    _annotate(services, caller, namespace, dataset, VACUUM_NOW, vacuum_now(now, ()))
    return pages.see(f"/console/{namespace}/datasets/{dataset}/vacuum")


def _annotate(services: Services, caller: Caller, namespace: str, dataset: str, annotation: str, value: str) -> None:
    patch = {"metadata": {"annotations": {annotation: value}}}
    services.writer.patch(caller, DATASETS, namespace, dataset, patch)


def _policy(services: Services, caller: Caller, namespace: str, name: str | None) -> VacuumPolicyView | None:
    """None: no policy selects the Dataset, or the caller may not see it."""
    if not name:
        return None
    try:
        return policy_of(services.resources.get(caller, VACUUM_POLICIES, namespace, name))
    except Problem as e:
        if e.kind is not Kind.NOT_FOUND:
            raise
        return None


DAYS: Final = 30
ACTIVE_SECONDS: Final = 3
IDLE_SECONDS: Final = 30
LINES_SHOWN: Final = 200  # of a log


@dataclass(frozen=True)
class TablePart:
    """What a page shows of a table; or why it cannot."""

    promotions: text.BarChart | None = None
    files: int | None = None
    """Data files of the head; None: unknown."""
    bytes: int | None = None
    """Of these files; None: unknown."""
    freshness: TableFreshness | None = None
    problem: str = ""


class Listed(StrEnum):
    """Which Datasets a list shows."""

    ALL = ""
    ATTENTION = "attention"
    NOT_READY = "not-ready"
    WAITING = "waiting"

    def has(self, row: DatasetRow) -> bool:
        """Whether the list shows a Dataset."""
        match self:
            case Listed.ALL:
                return True
            case Listed.ATTENTION:
                return bool(row.attention)
            case Listed.NOT_READY:
                return not row.is_ready
            case Listed.WAITING:
                return bool(row.waiting)
            case _:
                assert_never(self)


@router.get("/console/{namespace}/datasets")
def list_datasets(
    request: Request,
    asked: ConsoleListOf,
    name: Annotated[str, Query(max_length=253)] = "",
    show: Listed = Listed.ALL,
) -> Response:
    """The Datasets of a namespace, a page at a time."""
    known = namespace_of(asked.services, asked.caller, asked.namespace)
    chosen = [d for d in known.datasets if name.strip() in d.name and show.has(d)]
    filters = {"name": name, "show": show.value}
    return rows_page(request, "datasets.html", asked, known, chosen, dataset_name, filters, section="datasets")


def dataset_name(row: DatasetRow) -> str:
    """The place of a Dataset in lists."""
    return row.name


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
        attention=attention.of_dataset(shown),
        table=_table(services, caller, body),
        may_annotate=may(caller, Right.to_annotate(namespace, dataset)),
        may_restate=may(caller, Right.to_restate(namespace)),
        invalid_folders=shown.buffer.invalid_folders or (),
        refresh_seconds=ACTIVE_SECONDS if shown.active_runs else IDLE_SECONDS,
    )


@router.get("/console/{namespace}/datasets/{dataset}/table")
def show_table(
    request: Request, services: ServicesOf, caller: CallerOf, namespace: Namespace, dataset: DatasetName
) -> Response:
    """The table itself: columns, partitions, snapshots, and how many rows of each file are deleted."""
    target = readable(services, caller, namespace, dataset)
    body = dataset_resource(services, caller, namespace, dataset)
    policy = _policy(services, caller, namespace, vacuum_of(body).policy)
    holds = active_holds(map(HoldSpec.model_validate, body["spec"].get("holds") or ()), services.now())
    retention = policy.retention if policy is not None else None
    rule = rule_at(retention, services.now()) if retention is not None else None
    table = services.tables.describe(target, rule, holds)
    return pages.page(request, "table.html", namespace=namespace, section="datasets", dataset=dataset, table=table)


@router.get("/console/{namespace}/datasets/{dataset}/runs/{run}")
def show_run(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    run: ResourceName,
) -> Response:
    """One run with the end of its log, which the caller may need a right for."""
    runs = dataset_of(dataset_resource(services, caller, namespace, dataset)).runs
    shown = next((r for r in runs if r.name == run), None)
    if shown is None:
        raise not_found()
    lines, problem = _log(services, caller, namespace, run)
    return pages.page(
        request,
        "run.html",
        namespace=namespace,
        section="datasets",
        dataset=dataset,
        run=shown,
        lines=lines,
        problem=problem,
        refresh_seconds=ACTIVE_SECONDS if is_active(shown) else None,
    )


def _log(services: Services, caller: Caller, namespace: str, run: str) -> tuple[list[str], str]:
    """The last lines of a log, and why there are none."""
    try:
        return services.resources.log(caller, namespace, run, LINES_SHOWN), ""
    except Problem as e:
        return [], e.detail


def _table(services: Services, caller: Caller, resource: Mapping[str, Any]) -> TablePart:
    now = services.now()
    try:
        with services.tables.view(readable_table(services, caller, resource)) as view:
            counts = dict(view.promotions(now - timedelta(days=DAYS)))
            files, size = view.head_files
            return TablePart(text.per_day(counts, now, DAYS), files, size, view.freshness)
    except Problem as e:
        return TablePart(problem=e.detail)


_DAY: Final = r"^(\d{4}-\d{2}-\d{2})?$"


@router.get("/console/{namespace}/datasets/{dataset}/batches")
def list_batches(
    request: Request,
    asked: ConsoleListOf,
    dataset: DatasetName,
    state: StateFilter = None,
    prefix: Annotated[str, Query(max_length=MAX_BATCH_ID_LENGTH)] = "",
    since: Annotated[str, Query(pattern=_DAY)] = "",
    until: Annotated[str, Query(pattern=_DAY)] = "",
) -> Response:
    """The batches of a Dataset, the newest first. The days are in UTC; `until` is the last one."""
    target = readable(asked.services, asked.caller, asked.namespace, dataset)
    states = tuple(dict.fromkeys(str(s) for s in state or ()))
    begin, end = _day("since", since), _day("until", until)
    following = _following(end) if end is not None else None
    filters = {"state": sorted(states), "prefix": prefix, "since": since, "until": until}
    question = {"console": "batches", "table": str(target), **filters}
    page = batch_page(asked, target, BatchQuery(states, begin, following, prefix), question)
    return pages.list_page(
        request,
        "batches.html",
        asked,
        page.next_cursor,
        filters,
        section="datasets",
        dataset=dataset,
        batches=page.items,
        freshness=page.freshness,
        states=[str(s) for s in IndexedState],
        may_restate=asked.services.identity.may(asked.caller, Right.to_restate(asked.namespace)),
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


def _following(day: datetime) -> datetime | None:
    """The next day; None: there is none."""
    try:
        return day + timedelta(days=1)
    except OverflowError:
        return None


def _day(name: str, text: str) -> datetime | None:
    """The beginning of a day in UTC.

    Raises:
        Problem: `invalid-request`.
    """
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC) if text else None
    except ValueError:
        raise invalid(name, "a day such as 2026-03-01") from None
