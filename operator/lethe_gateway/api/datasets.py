"""Routes of namespaces, Datasets, their runs and their vacuums. All information is in resources.

The route of changes: server-sent events.
"""

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response
from lethe.kube import DATASETS, VACUUM_POLICIES

from lethe_gateway import paging
from lethe_gateway.answers import answer, responses
from lethe_gateway.api.documents import (
    ActiveFilter,
    CallerOf,
    Cursor,
    DatasetAnswer,
    DatasetName,
    DatasetPage,
    DecisionFilter,
    Limit,
    ListOf,
    Namespace,
    NamespacePage,
    RunPage,
    ServicesOf,
    VacuumPage,
    VacuumPolicyPage,
)
from lethe_gateway.identity.caller import Right
from lethe_gateway.problems import Kind
from lethe_gateway.resources.changes import KINDS, StreamPlace, place_of, text_of
from lethe_gateway.resources.datasets import RunView, dataset_of, is_active, policy_of, runs_of, summary_of, vacuum_of
from lethe_gateway.services import dataset_resource, require_namespace, resource_freshness, scanned
from lethe_gateway.streaming import ChangeStream, EventStreamResponse

router = APIRouter(tags=["datasets"])
_LIST = responses(Kind.CURSOR_EXPIRED)


@router.get("/v1/namespaces", responses=_LIST)
def list_namespaces(
    request: Request, services: ServicesOf, caller: CallerOf, limit: Limit = 100, cursor: Cursor = ""
) -> NamespacePage:
    """List the namespaces that you may see: those in which you may list Datasets."""
    own = sorted(n for n in services.settings.namespaces if services.identity.may(caller, Right.to_list(n)))
    shown, following = paging.part_of(own, str, limit, cursor, {"namespaces": caller.key})
    return answer(request, NamespacePage(items=shown, next_cursor=following))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/datasets", responses=_LIST)
def list_datasets(
    request: Request,
    asked: ListOf,
) -> DatasetPage:
    """List the Datasets of a namespace."""
    page = scanned(asked, DATASETS, {}, lambda d: [summary_of(d)])
    return answer(request, DatasetPage(**page))  # type: ignore[return-value]


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
    asked: ListOf,
    active: ActiveFilter = False,
) -> RunPage:
    """List the runs of a namespace: the active ones with their progress, and the last few of each Dataset and kind."""

    def chosen(dataset: Mapping[str, Any]) -> list[Any]:
        return [r for r in runs_of(dataset) if not active or is_active(r)]

    page = scanned(asked, DATASETS, {"active": active}, chosen)
    return answer(request, RunPage(**page))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/datasets/{dataset}/runs", responses=_LIST, tags=["runs"])
def list_dataset_runs(
    request: Request,
    asked: ListOf,
    dataset: DatasetName,
    active: ActiveFilter = False,
) -> RunPage:
    """List the runs of one Dataset."""
    services, namespace = asked.services, asked.namespace
    body = dataset_resource(services, asked.caller, namespace, dataset)
    freshness = resource_freshness(services, str(body["metadata"].get("resourceVersion") or ""))
    items = [r for r in runs_of(body) if not active or is_active(r)]
    question = {"runs": f"{namespace}/{dataset}", "uid": body["metadata"].get("uid"), "active": active}
    shown, following = paging.part_of(items, _name, asked.limit, asked.cursor, question)
    return answer(request, RunPage(items=shown, next_cursor=following, freshness=freshness))  # type: ignore[return-value]


def _name(run: RunView) -> str:
    return f"{run.kind}/{run.name}"


@router.get("/v1/namespaces/{namespace}/vacuums", responses=_LIST, tags=["vacuums"])
def list_vacuums(
    request: Request,
    asked: ListOf,
    decision: DecisionFilter = "",
) -> VacuumPage:
    """List the vacuums of a namespace: what is decided, and the plan of each."""

    def chosen(dataset: Mapping[str, Any]) -> list[Any]:
        vacuum = vacuum_of(dataset)
        return [vacuum] if not decision or vacuum.decision == decision else []

    page = scanned(asked, DATASETS, {"decision": decision}, chosen)
    return answer(request, VacuumPage(**page))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/vacuumpolicies", responses=_LIST, tags=["vacuums"])
def list_vacuum_policies(
    request: Request,
    asked: ListOf,
) -> VacuumPolicyPage:
    """List the VacuumPolicies of a namespace: windows, approval, and when vacuums ran."""
    page = scanned(asked, VACUUM_POLICIES, {}, lambda d: [policy_of(d)])
    return answer(request, VacuumPolicyPage(**page))  # type: ignore[return-value]


changes_router = APIRouter(tags=["changes"])
_RESPONSES = {
    **{k: v for k, v in responses().items() if k != 304},
    200: {
        "description": "Events: `ready`, `dataset`, `restatement`, `run`, `reset`, `end`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
}


@changes_router.get("/v1/namespaces/{namespace}/changes", response_class=Response, responses=_RESPONSES)
def follow_changes(
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    dataset: Annotated[str, Query(max_length=253, description="Only what concerns this Dataset.")] = "",
    last_event_id: Annotated[
        str, Header(alias="Last-Event-ID", max_length=41, description="Continue after this event.")
    ] = "",
) -> Response:
    """Follow the changes of Datasets, Restatements and runs of a namespace.

    Needs the rights to list and watch Datasets and Restatements. The stream begins with the event `ready`. A new stream continues
    after the id of this or a later event.
    """
    require_namespace(services, namespace)
    place = place_of(last_event_id) if last_event_id else None
    # Also with a place to continue from: now is the time to answer 404.
    versions = [services.resources.page(caller, kind, namespace, "", 1).version for kind in KINDS]
    place = place or StreamPlace(*versions)
    stream = ChangeStream(services, caller, namespace, dataset, place)
    return EventStreamResponse(stream, text_of("ready", {"namespace": namespace}, place.id))
