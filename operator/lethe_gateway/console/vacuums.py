"""Pages of vacuums: what is planned, when, what it costs, and the approval."""

from datetime import datetime
from typing import Annotated, Any, Final

from fastapi import APIRouter, Query, Request, Response
from lethe.contract.kubernetes import APPROVE, VACUUM_NOW
from lethe.kube import DATASETS, VACUUM_POLICIES
from lethe_operator.resources.manifests import vacuum_now

from lethe_gateway.api.documents import CallerOf, Cursor, DatasetName, Namespace, ServicesOf
from lethe_gateway.console import pages
from lethe_gateway.console.pages import FormOf
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.lookup import dataset_resource, scanned
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.resources.vacuums import VacuumPolicy, policy_of, vacuum_of
from lethe_gateway.services import Services

router = APIRouter(include_in_schema=False)
PAGE: Final = 100
POLICIES: Final = 100


@router.get("/console/{namespace}/vacuums")
def list_vacuums(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    decision: Annotated[str, Query(max_length=63)] = "",
    cursor: Cursor = "",
) -> Response:
    """The next vacuum of each Dataset that a policy selects, and the policies."""

    def chosen(resource: dict[str, Any]) -> list[Any]:
        vacuum = vacuum_of(resource)
        return [vacuum] if vacuum.decision and (not decision or vacuum.decision == decision) else []

    page = scanned(services, caller, DATASETS, namespace, (PAGE, cursor, {"decision": decision}), chosen)
    policies = scanned(services, caller, VACUUM_POLICIES, namespace, (POLICIES, "", {}), lambda p: [policy_of(p)])
    return pages.page(
        request,
        "vacuums.html",
        namespace=namespace,
        section="vacuums",
        vacuums=page["items"],
        next_cursor=page["next_cursor"],
        is_first=not cursor,
        decision=decision,
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
    services.writer.annotate(caller, DATASETS, namespace, dataset, {APPROVE: shown})
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
    services.writer.annotate(caller, DATASETS, namespace, dataset, {VACUUM_NOW: vacuum_now(now, ())})
    return pages.see(f"/console/{namespace}/datasets/{dataset}/vacuum")


def _policy(services: Services, caller: Caller, namespace: str, name: str | None) -> VacuumPolicy | None:
    """None: no policy selects the Dataset, or the caller may not see it."""
    if not name:
        return None
    try:
        return policy_of(services.resources.get(caller, VACUUM_POLICIES, namespace, name))
    except Problem as e:
        if e.kind is not Kind.NOT_FOUND:
            raise
        return None
