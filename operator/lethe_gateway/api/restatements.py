"""Routes of Restatements. All information is in resources."""

from collections.abc import Callable
from typing import Any

from fastapi import APIRouter, Request
from lethe.kube import RESTATEMENTS

from lethe_gateway.answers import answer, responses
from lethe_gateway.api.documents import (
    CallerOf,
    DatasetFilter,
    ListOf,
    Namespace,
    PhaseFilter,
    ResourceName,
    RestatementAnswer,
    RestatementPage,
    ServicesOf,
)
from lethe_gateway.lookup import require_namespace, resource_freshness, scanned
from lethe_gateway.problems import Kind
from lethe_gateway.resources.restatements import dataset_name_of, restatement_of, summary_of

router = APIRouter(tags=["restatements"])


@router.get("/v1/namespaces/{namespace}/restatements", responses=responses(Kind.CURSOR_EXPIRED))
def list_restatements(
    request: Request,
    asked: ListOf,
    dataset: DatasetFilter = "",
    phase: PhaseFilter = "",
) -> RestatementPage:
    """List the Restatements of a namespace."""
    page = scanned(asked, RESTATEMENTS, {"dataset": dataset, "phase": phase}, chosen_by(dataset, phase))
    return answer(request, RestatementPage(**page))  # type: ignore[return-value]


@router.get("/v1/namespaces/{namespace}/restatements/{restatement}", responses=responses())
def get_restatement(
    request: Request, services: ServicesOf, caller: CallerOf, namespace: Namespace, restatement: ResourceName
) -> RestatementAnswer:
    """Get one Restatement: how far it is, what its commit did, and whether the bytes are gone."""
    require_namespace(services, namespace)
    body = services.resources.get(caller, RESTATEMENTS, namespace, restatement)
    freshness = resource_freshness(services, str(body["metadata"].get("resourceVersion") or ""))
    return answer(request, RestatementAnswer(**dict(restatement_of(body)), freshness=freshness))  # type: ignore[return-value]


def chosen_by(dataset: str, phase: str) -> Callable[[dict[str, Any]], list[Any]]:
    """What a resource contributes to a list of the Restatements of this Dataset in this phase; "": any."""

    def chosen(resource: dict[str, Any]) -> list[Any]:
        if dataset and dataset_name_of(resource) != dataset:
            return []
        summary = summary_of(resource)
        return [summary] if not phase or summary.phase == phase else []

    return chosen
