"""Routes of namespaces, Datasets, their runs and their vacuums. All information is in resources."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from lethe_operator.kube import DATASETS, VACUUM_POLICIES, ResourceKind

from lethe_gateway import paging
from lethe_gateway.answers import answer, responses
from lethe_gateway.api.documents import (
    DatasetAnswer,
    DatasetPage,
    NamespaceList,
    RunPage,
    VacuumPage,
    VacuumPolicyPage,
)
from lethe_gateway.api.parameters import (
    CallerOf,
    Cursor,
    DatasetName,
    Limit,
    Namespace,
    ServicesOf,
    require_namespace,
)
from lethe_gateway.freshness import ResourceFreshness
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.problems import Kind
from lethe_gateway.resources import scan
from lethe_gateway.resources.datasets import dataset_of, summary_of
from lethe_gateway.resources.runs import is_active, runs_of
from lethe_gateway.resources.vacuums import policy_of, vacuum_of
from lethe_gateway.services import Services

router = APIRouter(tags=["datasets"])
_LIST = responses(Kind.CURSOR_EXPIRED)


@router.get("/v1/namespaces", responses=responses())
def list_namespaces(request: Request, services: ServicesOf, caller: CallerOf) -> NamespaceList:
    """List the namespaces that you may see: those in which you may list Datasets."""
    own = sorted(n for n in services.settings.namespaces if services.identity.may(caller, Right.to_list(n)))
    return answer(request, NamespaceList(items=own))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/datasets", responses=_LIST)
def list_datasets(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> DatasetPage:
    """List the Datasets of a namespace."""
    found = scanned(services, caller, DATASETS, namespace, (limit, cursor, {}), lambda d: [summary_of(d)])
    return answer(request, DatasetPage(**found))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/datasets/{dataset}", responses=responses())
def get_dataset(
    request: Request, services: ServicesOf, caller: CallerOf, namespace: Namespace, dataset: DatasetName
) -> DatasetAnswer:
    """Get one Dataset: waiting batches, tombstones, conditions, the vacuum with its plan, and runs."""
    body = dataset_resource(services, caller, namespace, dataset)
    freshness = resource_freshness(services, str(body["metadata"].get("resourceVersion") or ""))
    return answer(request, DatasetAnswer(**dict(dataset_of(body)), freshness=freshness))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/runs", responses=_LIST, tags=["runs"])
def list_runs(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    active: Annotated[bool, Query(description="Only runs that have not ended.")] = False,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> RunPage:
    """List the runs of a namespace: the active ones with their progress, and the last few of each Dataset and kind."""
    asked = (limit, cursor, {"active": active})
    found = scanned(
        services, caller, DATASETS, namespace, asked, lambda d: [r for r in runs_of(d) if not active or is_active(r)]
    )
    return answer(request, RunPage(**found))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/datasets/{dataset}/runs", responses=responses(), tags=["runs"])
def list_dataset_runs(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: DatasetName,
    active: Annotated[bool, Query(description="Only runs that have not ended.")] = False,
) -> RunPage:
    """List the runs of one Dataset."""
    body = dataset_resource(services, caller, namespace, dataset)
    freshness = resource_freshness(services, str(body["metadata"].get("resourceVersion") or ""))
    items = [r for r in runs_of(body) if not active or is_active(r)]
    return answer(request, RunPage(items=items, freshness=freshness))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/vacuums", responses=_LIST, tags=["vacuums"])
def list_vacuums(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    decision: Annotated[str, Query(max_length=63, description="Only vacuums with this decision.")] = "",
    limit: Limit = 100,
    cursor: Cursor = "",
) -> VacuumPage:
    """List the vacuums of a namespace: what is decided, and the plan of each."""

    def chosen(dataset: Mapping[str, Any]) -> list[Any]:
        vacuum = vacuum_of(dataset)
        return [vacuum] if not decision or vacuum.decision == decision else []

    found = scanned(services, caller, DATASETS, namespace, (limit, cursor, {"decision": decision}), chosen)
    return answer(request, VacuumPage(**found))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/vacuumpolicies", responses=_LIST, tags=["vacuums"])
def list_vacuum_policies(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    limit: Limit = 100,
    cursor: Cursor = "",
) -> VacuumPolicyPage:
    """List the VacuumPolicies of a namespace: windows, approval, and when vacuums ran."""
    found = scanned(services, caller, VACUUM_POLICIES, namespace, (limit, cursor, {}), lambda d: [policy_of(d)])
    return answer(request, VacuumPolicyPage(**found))  # type: ignore[return-value]


def dataset_resource(services: Services, caller: Caller, namespace: str, dataset: str) -> dict[str, Any]:
    """Raises: Problem (`not-found`), also if the caller may not see it."""
    require_namespace(services, namespace)
    return services.resources.get(caller, DATASETS, namespace, dataset)


def scanned(
    services: Services,
    caller: Caller,
    kind: ResourceKind,
    namespace: str,
    asked: tuple[int, str, Mapping[str, Any]],
    results: Callable[[dict[str, Any]], list[Any]],
) -> dict[str, Any]:
    """The fields of a page.

    Args:
        asked: The limit, the cursor and the filters.
    """
    limit, cursor, filters = asked
    require_namespace(services, namespace)
    question = {"kind": kind.plural, "namespace": namespace, **filters}
    start = scan.Position(*paging.decode(cursor, question, str, str, int)) if cursor else scan.Position()
    found = scan.page(
        lambda after, size: services.resources.page(caller, kind, namespace, after, size), results, start, limit
    )
    following = found.next
    return {
        "items": found.items,
        "next_cursor": paging.encode([following.after, following.name, following.skip], question)
        if following
        else None,
        "freshness": resource_freshness(services, found.version),
    }


def resource_freshness(services: Services, version: str) -> ResourceFreshness:
    return ResourceFreshness(read_time=services.now(), resource_version=version or None)
