"""Pages about all Datasets of a namespace: what needs attention, totals, and the search. I/O, through the services."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from lethe.kube import LEASES

from lethe_gateway.api.documents import BatchSummary, CallerOf, ServicesOf, batch_summary
from lethe_gateway.console import attention, pages, rows
from lethe_gateway.console.attention import Attention, Health
from lethe_gateway.console.namespaces import EVERY_SECONDS, Namespace, namespace_of, namespaces_of, rows_page
from lethe_gateway.console.pages import ConsoleListOf
from lethe_gateway.console.rows import NamespaceTotals, RestatementRow
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.services import Services, readable
from lethe_gateway.tables.records import BatchQuery

router = APIRouter(include_in_schema=False)
SHOWN: Final = 20  # things of one namespace on the overview, and results of each kind of a search
TABLES_AT_MOST: Final = 20  # that a search asks for a batch
SEARCH_SECONDS: Final = 5.0  # after which a search asks no further table


@dataclass(frozen=True)
class NamespaceOverview:
    """A namespace on the overview."""

    namespace: Namespace
    needs: Sequence[Attention]
    """The most urgent."""
    needs_count: int
    totals: NamespaceTotals
    health: Health


def _health(services: Services, caller: Caller, namespace: str) -> Health:
    try:
        return attention.health_of(services.resources.get(caller, LEASES, namespace, attention.LEASE), services.now())
    except Problem:
        return attention.UNKNOWN


def _needs(namespace: Namespace, operator: Health) -> list[Attention]:
    return rows.needs(namespace.datasets, namespace.restatements, operator.attention)


@router.get("/console/")
def show_overview(request: Request, services: ServicesOf, caller: CallerOf) -> Response:
    """What needs attention in the namespaces that the caller may see, with totals and the health of the operator."""
    parts = [_overview(services, caller, found) for found in namespaces_of(services, caller, _own(services, caller))]
    soonest = min((p.namespace.refresh_seconds for p in parts), default=EVERY_SECONDS)
    only = parts[0].namespace.name if len(parts) == 1 else ""
    return pages.page(
        request, "overview.html", parts=parts, namespace=only, section="overview", refresh_seconds=soonest
    )


def _own(services: Services, caller: Caller) -> list[str]:
    return sorted(n for n in services.settings.namespaces if services.identity.may(caller, Right.to_list(n)))


def _overview(services: Services, caller: Caller, namespace: Namespace) -> NamespaceOverview:
    operator = _health(services, caller, namespace.name)
    needs = _needs(namespace, operator)
    totals = rows.totals(namespace.datasets, services.now())
    return NamespaceOverview(namespace, needs[:SHOWN], len(needs), totals, operator)


@router.get("/console/{namespace}/attention")
def show_attention(request: Request, asked: ConsoleListOf) -> Response:
    """Everything that needs attention in a namespace, a page at a time."""
    found = namespace_of(asked.services, asked.caller, asked.namespace)
    needs = _needs(found, _health(asked.services, asked.caller, asked.namespace))
    return rows_page(request, "attention.html", asked, found, needs, rows.key_of, {}, section="overview")


@dataclass(frozen=True)
class NamespaceResults:
    """What a search found in a namespace, at most `SHOWN` of each kind."""

    namespace: str
    datasets: Sequence[str]
    restatements: Sequence[RestatementRow]
    repeated: dict[str, str]
    runs: Sequence[tuple[str, str]]
    """Datasets, and names of runs."""
    batches: Sequence[tuple[str, BatchSummary]]
    """Datasets, and batches."""
    more: bool
    """There is more of some kind."""
    notes: Sequence[str]
    """What was not searched, and why."""

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found."""
        return not (self.datasets or self.restatements or self.runs or self.batches)


@router.get("/console/-/search")
def search(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    q: Annotated[str, Query(max_length=256)] = "",
    namespace: Annotated[str, Query(max_length=63)] = "",
    dataset: Annotated[str, Query(max_length=253)] = "",
) -> Response:
    """Find Datasets, runs, Restatements by their names, tickets and reasons, and batches by the beginning of their ids.

    Args:
        namespace: Only in this one; "": in all that the caller may see.
        dataset: Of this one, the batches are searched; "": of the first few.
    """
    wanted = q.strip()
    searched = [namespace] if namespace else _own(services, caller)
    known = namespaces_of(services, caller, searched) if wanted else []
    found = [_searched(services, caller, namespace, dataset, wanted) for namespace in known]
    shown_in = searched[0] if len(searched) == 1 else ""
    return pages.page(
        request, "search.html", namespace=shown_in, section="search", q=wanted, search_in=dataset, found=found
    )


def _searched(services: Services, caller: Caller, known: Namespace, dataset: str, wanted: str) -> NamespaceResults:
    datasets = [d.name for d in known.datasets if rows.matches(d, wanted)]
    restatements = rows.newest_first(r for r in known.restatements if rows.matches(r, wanted))
    runs = rows.runs_named(known.datasets, wanted)
    notes = [] if known.is_complete else ["The resources are still being read. Search again soon."]
    targets = [dataset] if dataset else [d.name for d in known.datasets]
    if len(targets) > TABLES_AT_MOST:
        few = datasets[:TABLES_AT_MOST]
        notes.append(
            f"There are {len(targets):,} Datasets, too many to ask each table for a batch. Open a Dataset to search its batches."
        )
        targets = few
    batches = list(_batches(services, caller, known.name, targets, wanted, notes))
    every = (datasets, restatements, runs, batches)
    return NamespaceResults(
        namespace=known.name,
        datasets=datasets[:SHOWN],
        restatements=restatements[:SHOWN],
        repeated=rows.repeated_by(known.restatements),
        runs=runs[:SHOWN],
        batches=batches[:SHOWN],
        more=any(len(found) > SHOWN for found in every),
        notes=notes,
    )


def _batches(
    services: Services, caller: Caller, namespace: str, datasets: Iterable[str], wanted: str, notes: list[str]
) -> Iterable[tuple[str, BatchSummary]]:
    """The batches whose ids begin with a text. Adds to the notes what cannot be searched."""
    begun, forbidden = time.monotonic(), 0
    for dataset in datasets:
        if time.monotonic() - begun > SEARCH_SECONDS:
            notes.append(f"Batches of {dataset} and of those after it were not searched: it took too long.")
            return
        try:
            with services.tables.view(readable(services, caller, namespace, dataset)) as view:
                for row in view.batches(BatchQuery(id_prefix=wanted), SHOWN):
                    yield dataset, batch_summary(row)
        except Problem as e:
            forbidden += e.kind is Kind.FORBIDDEN
            if e.kind not in (Kind.NO_TABLE, Kind.NOT_TRACKED, Kind.FORBIDDEN):
                notes.append(f"Batches of {dataset}: {e.detail}")
    if forbidden:
        notes.append(f"The batches of {forbidden} Datasets were not searched: you may not read them.")
