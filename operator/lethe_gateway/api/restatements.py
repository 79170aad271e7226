"""Routes of Restatements. All information is in resources."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from lethe.contract.kubernetes import REQUESTED_BY
from lethe.kube import RESTATEMENTS
from lethe_operator.resources import manifests

from lethe_gateway.answers import answer, changed, responses
from lethe_gateway.api.documents import (
    CallerOf,
    DatasetFilter,
    ListOf,
    Namespace,
    NewRestatement,
    PhaseFilter,
    ResourceName,
    RestatementAnswer,
    RestatementPage,
    ServicesOf,
)
from lethe_gateway.identity.caller import Caller
from lethe_gateway.lookup import require_namespace, resource_freshness, scanned
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.resources.restatements import dataset_name_of, restatement_of, summary_of
from lethe_gateway.services import Services

router = APIRouter(tags=["restatements"])
_BASE: Final = "/v1/namespaces/{namespace}/restatements"
_CREATES = {k: v for k, v in responses(Kind.FORBIDDEN, Kind.ALREADY_EXISTS, Kind.REJECTED).items() if k != 304}


@router.get(_BASE, responses=responses(Kind.CURSOR_EXPIRED))
def list_restatements(
    request: Request,
    asked: ListOf,
    dataset: DatasetFilter = "",
    phase: PhaseFilter = "",
) -> RestatementPage:
    """List the Restatements of a namespace."""
    page = scanned(asked, RESTATEMENTS, {"dataset": dataset, "phase": phase}, chosen_by(dataset, phase))
    return answer(request, RestatementPage(**page))  # type: ignore[return-value]


@router.get(f"{_BASE}/{{restatement}}", responses=responses())
def get_restatement(
    request: Request, services: ServicesOf, caller: CallerOf, namespace: Namespace, restatement: ResourceName
) -> RestatementAnswer:
    """Get one Restatement: how far it is, what its commit did, and whether the bytes are gone."""
    require_namespace(services, namespace)
    body = services.resources.get(caller, RESTATEMENTS, namespace, restatement)
    return answer(request, _answered(services, body))  # type: ignore[return-value]


@router.post(
    _BASE,
    status_code=201,
    responses={**_CREATES, 200: {"description": "The Restatement exists already.", "model": RestatementAnswer}},
    response_model=RestatementAnswer,
)
def create_restatement(services: ServicesOf, caller: CallerOf, namespace: Namespace, body: NewRestatement) -> Response:
    """Create a Restatement. The same request again finds it and changes nothing.

    Needs the right to `create` `restatements`, and to `get` them. The API server checks the spec.
    """
    require_namespace(services, namespace)
    resource, is_new = created(services, caller, namespace, manifests.restatement(body.spec, body.name))
    location = f"{_BASE.format(namespace=namespace)}/{resource['metadata']['name']}"
    return changed(_answered(services, resource), 201 if is_new else 200, {"Location": location})


def created(
    services: Services, caller: Caller, namespace: str, document: Mapping[str, Any]
) -> tuple[dict[str, Any], bool]:
    """A Restatement that is created in the name of the caller, and whether it is new: the same one may exist.

    Raises:
        Problem: `already-exists`, if one of the name has another spec; and what the API server refuses.
    """
    metadata = {**document["metadata"], "annotations": {REQUESTED_BY: caller.username}}
    try:
        return services.writer.create(caller, RESTATEMENTS, namespace, {**document, "metadata": metadata}), True
    except Problem as e:
        if e.kind is not Kind.ALREADY_EXISTS:
            raise
        there = services.resources.get(caller, RESTATEMENTS, namespace, str(metadata["name"]))
        stored, asked = (manifests.without_defaults(d["spec"]) for d in (there, document))
        if any(stored.get(name) != value for name, value in asked.items()):
            raise
        return there, False


def _answered(services: Services, resource: dict[str, Any]) -> RestatementAnswer:
    freshness = resource_freshness(services, str(resource["metadata"].get("resourceVersion") or ""))
    return RestatementAnswer(**dict(restatement_of(resource)), freshness=freshness)


def chosen_by(dataset: str, phase: str) -> Callable[[dict[str, Any]], list[Any]]:
    """What a resource contributes to a list of the Restatements of this Dataset in this phase; "": any."""

    def chosen(resource: dict[str, Any]) -> list[Any]:
        if dataset and dataset_name_of(resource) != dataset:
            return []
        summary = summary_of(resource)
        return [summary] if not phase or summary.phase == phase else []

    return chosen
