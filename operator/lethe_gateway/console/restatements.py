"""Pages of Restatements: the list, one, and the form that composes one.

Pages of erasures: what is due, what blocks it, and the records.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import yaml
from fastapi import APIRouter, Query, Request, Response
from lethe.kube import RESTATEMENTS
from lethe.restatement.repeats import FAILED

from lethe_gateway.api.batches import erasure_page, record_of
from lethe_gateway.api.documents import (
    CallerOf,
    DatasetFilter,
    DatasetName,
    Namespace,
    OpenFilter,
    PhaseFilter,
    ResourceName,
    ServicesOf,
)
from lethe_gateway.api.restatements import created
from lethe_gateway.console import attention, drafts, pages, rows
from lethe_gateway.console.datasets import dataset_name
from lethe_gateway.console.drafts import Draft
from lethe_gateway.console.namespaces import namespace_of, rows_page
from lethe_gateway.console.pages import ConsoleListOf, FormOf
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind, Problem, not_found
from lethe_gateway.resources.restatements import RestatementView, restatement_of
from lethe_gateway.services import Services, dataset_resource, readable, require_namespace

router = APIRouter(include_in_schema=False)
ACTIVE_SECONDS: Final = 2
_CHANGES: Final = frozenset({Kind.FORBIDDEN, Kind.REJECTED, Kind.ALREADY_EXISTS})


@router.get("/console/{namespace}/restatements")
def list_restatements(
    request: Request,
    asked: ConsoleListOf,
    dataset: DatasetFilter = "",
    phase: PhaseFilter = "",
) -> Response:
    """List the Restatements of a namespace, or of one Dataset or phase, the newest first."""
    known = namespace_of(asked.services, asked.caller, asked.namespace)
    chosen = [r for r in known.restatements if dataset in ("", r.dataset) and phase in ("", r.phase or "Pending")]
    return rows_page(
        request,
        "restatements.html",
        asked,
        known,
        rows.newest_first(chosen),
        rows.age_key,
        {"dataset": dataset, "phase": phase},
        section="restatements",
        repeated=rows.repeated_by(known.restatements),
    )


@router.get("/console/{namespace}/restatements/{restatement}")
def show_restatement(
    request: Request, services: ServicesOf, caller: CallerOf, namespace: Namespace, restatement: ResourceName
) -> Response:
    """One Restatement: how far it is, what it did, and what to do next."""
    require_namespace(services, namespace)
    resource = services.resources.get(caller, RESTATEMENTS, namespace, restatement)
    return _shown(request, services, caller, resource)


@router.post("/console/{namespace}/restatements/{restatement}/apply")
def apply_planned(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    restatement: ResourceName,
    form: FormOf,  # noqa: ARG001
) -> Response:
    """Carry out what a dry run has planned."""
    require_namespace(services, namespace)
    resource = services.resources.get(caller, RESTATEMENTS, namespace, restatement)
    if not resource["spec"].get("dryRun"):
        raise Problem(Kind.INVALID_REQUEST, "This Restatement is no dry run. It is carried out already.")
    try:
        return _created(services, caller, namespace, drafts.carried_out(resource))
    except Problem as e:
        if e.kind not in _CHANGES:
            raise
        return _shown(request, services, caller, resource, e)


@router.get("/console/{namespace}/datasets/{dataset}/restate")
def compose(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    operation: Annotated[str, Query(max_length=63)] = "",
    batch: Annotated[list[str] | None, Query()] = None,
    undoes: Annotated[str, Query(max_length=253)] = "",
) -> Response:
    """The form, filled with what the address says."""
    dataset_resource(services, caller, namespace, dataset)
    given = {"operation": [operation], "batch": batch or [], "undoes": [undoes]}
    draft = drafts.draft_of({name: values for name, values in given.items() if any(values)})
    unread = {k: v for k, v in draft.errors.items() if k == "batch_ids" and draft.batch_ids}
    return _composer(request, services, caller, (namespace, dataset), draft, errors=unread)


@router.post("/console/{namespace}/datasets/{dataset}/restate")
def restate(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    form: FormOf,
) -> Response:
    """Show the YAML, send it as a file, plan it, or apply it with the rights of the caller."""
    dataset_resource(services, caller, namespace, dataset)
    draft, action = drafts.draft_of(form), (form.get("action") or ("yaml",))[0]
    at = namespace, dataset
    if draft.errors:
        return _composer(request, services, caller, at, draft, errors=draft.errors)
    body = drafts.manifest(draft, namespace, dataset)
    if action == "download":
        return _file(body)
    if action not in ("plan", "apply"):
        return _composer(request, services, caller, at, draft, text=_yaml(body))
    try:
        return _created(services, caller, namespace, drafts.planned(body) if action == "plan" else body)
    except Problem as e:
        if e.kind not in _CHANGES:
            raise
        return _composer(request, services, caller, at, draft, text=_yaml(body), problem=e)


def _created(services: Services, caller: Caller, namespace: str, body: Mapping[str, Any]) -> Response:
    # Its name comes from its content, so a form that is sent again finds what it has created.
    resource, _ = created(services, caller, namespace, body)
    return pages.see(f"/console/{namespace}/restatements/{resource['metadata']['name']}")


def _composer(
    request: Request,
    services: Services,
    caller: Caller,
    at: tuple[str, str],
    draft: Draft,
    text: str = "",
    errors: Mapping[str, str] | None = None,
    problem: Problem | None = None,
) -> Response:
    namespace, dataset = at
    return pages.page(
        request,
        "restate.html",
        400 if errors and request.method == "POST" else problem.kind.status if problem is not None else 200,
        namespace=namespace,
        section="datasets",
        dataset=dataset,
        draft=draft,
        choices=drafts.CHOICES,
        by_records=drafts.BY_RECORDS,
        text=text,
        errors=errors or {},
        problem=problem.detail if problem is not None else "",
        may_restate=services.identity.may(caller, Right.to_restate(namespace)),
    )


def _shown(
    request: Request, services: Services, caller: Caller, resource: Mapping[str, Any], problem: Problem | None = None
) -> Response:
    restatement = restatement_of(resource)
    succeeded = attention.condition(restatement, "Succeeded")
    waits = succeeded is None or succeeded.status == "Unknown"
    repeated_by = _repeated_by(services, caller, restatement) if restatement.phase in FAILED else None
    return pages.page(
        request,
        "restatement.html",
        problem.kind.status if problem is not None else 200,
        namespace=restatement.namespace,
        section="restatements",
        restatement=restatement,
        succeeded=succeeded,
        attention=attention.of_restatement(resource) if repeated_by is None else [],
        repeated_by=repeated_by,
        problem=problem.detail if problem is not None else "",
        may_restate=services.identity.may(caller, Right.to_restate(restatement.namespace)),
        refresh_seconds=ACTIVE_SECONDS if waits and problem is None else None,
    )


def _repeated_by(services: Services, caller: Caller, failed: RestatementView) -> str | None:
    """The Restatement that repeated a failed one with success; None: none has, or the caller may not list them."""
    try:
        known = namespace_of(services, caller, failed.namespace)
    except Problem as e:
        if e.kind is not Kind.NOT_FOUND:
            raise
        return None
    return rows.repeated_by(known.restatements).get(failed.name)


def _yaml(body: Mapping[str, Any]) -> str:
    return yaml.safe_dump(dict(body), sort_keys=False, allow_unicode=True, width=120)


def _file(body: Mapping[str, Any]) -> Response:
    name = body["metadata"]["name"]
    headers = {**pages.HEADERS, "Content-Disposition": f'attachment; filename="{name}.yaml"'}
    return Response(_yaml(body), media_type="application/yaml", headers=headers)


@router.get("/console/{namespace}/erasures")
def list_open(request: Request, asked: ConsoleListOf) -> Response:
    """The Datasets with open erasures."""
    known = namespace_of(asked.services, asked.caller, asked.namespace)
    chosen = [d for d in known.datasets if d.open_erasures]
    return rows_page(request, "open_erasures.html", asked, known, chosen, dataset_name, {}, section="erasures")


@router.get("/console/{namespace}/datasets/{dataset}/erasures")
def list_erasures(
    request: Request,
    asked: ConsoleListOf,
    dataset: DatasetName,
    open_only: OpenFilter = False,
) -> Response:
    """The erasures of a Dataset: those that are open, and those that were verified."""
    target = readable(asked.services, asked.caller, asked.namespace, dataset)
    question = {"console": "erasures", "table": str(target), "open": open_only}
    page = erasure_page(asked, target, open_only, question)
    return pages.list_page(
        request,
        "erasures.html",
        asked,
        page.next_cursor,
        {"open": "true" if open_only else ""},
        section="erasures",
        dataset=dataset,
        erasures=page.items,
        freshness=page.freshness,
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
