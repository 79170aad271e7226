"""Routes of Restatements. All information is in resources."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from fastapi import APIRouter, Request, Response
from lethe.contract.kubernetes import REQUESTED_BY
from lethe.contract.restatement import Requester
from lethe.kube import RESTATEMENTS, SECRETS
from lethe_operator.resources import manifests
from lethe_operator.resources.manifests import SubjectValues

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
from lethe_gateway.problems import Kind, Problem, field_error
from lethe_gateway.resources.restatements import dataset_name_of, restatement_of, summary_of
from lethe_gateway.services import Services, require_namespace, resource_freshness, scanned

router = APIRouter(tags=["restatements"])
_SECRET_PREFIX: Final = "erase-"
"""The chart's value erase.allowedSecrets allows such names by default."""
NAME_AT_MOST: Final = 253
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
    if body.values:
        resource, is_new = created_with_values(services, caller, namespace, body)
    else:
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
    who = Requester.of(caller.username, caller.groups)
    annotations = who.annotations if "subject" in document["spec"] else {REQUESTED_BY: who.username}
    metadata = {**document["metadata"], "annotations": annotations}
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


def created_with_values(
    services: Services, caller: Caller, namespace: str, body: NewRestatement
) -> tuple[dict[str, Any], bool]:
    """A Restatement of a subject, and the Secret with its values, in the name of the caller. Whether the Restatement is new.

    The Restatement comes first, so that no Secret is left without an owner. Before it, a dry run shows whether the caller may
    create the Secret. A request that was interrupted between the two can be repeated.

    Raises:
        Problem: `already-exists`, if one of the name has another spec or other values; and what the API server refuses.
    """
    if not body.name:
        raise _invalid("name", "With values, the Restatement needs a name, so that the same request again finds it.")
    if "subject" in body.spec:
        raise _invalid("spec.subject", "Leave it out: it is made from values.")
    secret = f"{_SECRET_PREFIX}{body.name}"
    if len(secret) > NAME_AT_MOST:
        raise _invalid("name", f"With values, a name has at most {NAME_AT_MOST - len(_SECRET_PREFIX)} characters.")
    values = {identity: "".join(f"{v}\n" for v in listed) for identity, listed in body.values.items()}
    try:
        services.writer.create(caller, SECRETS, namespace, manifests.values_secret(secret, values), dry_run=True)
    except Problem as e:
        if e.kind is not Kind.ALREADY_EXISTS:
            raise
    refs = [SubjectValues(identity, secret, identity) for identity in values]
    spec = {**body.spec, "subject": manifests.subject_of(refs, delete_values=True)}
    resource, is_new = created(services, caller, namespace, manifests.restatement(spec, body.name))
    if not is_new and _is_erased(resource):
        text = "its erasure is verified and its values are deleted, so they cannot be compared."
        raise _exists(body.name, text)
    owned = manifests.values_secret(secret, values, owner=resource)
    try:
        services.writer.create(caller, SECRETS, namespace, owned)
    except Problem as e:
        if e.kind is not Kind.ALREADY_EXISTS:
            raise
        _require_same_values(services, caller, namespace, body.name, owned)
    return resource, is_new


def _require_same_values(
    services: Services, caller: Caller, namespace: str, name: str, secret: Mapping[str, Any]
) -> None:
    """Require that a Secret has these values, without the right to read it: it is immutable, so only the same can be written.

    Raises:
        Problem: `already-exists`, also if the caller may not find out.
    """
    patch = {"data": secret["data"]}
    try:
        there = services.writer.patch(caller, SECRETS, namespace, secret["metadata"]["name"], patch, dry_run=True)
    except Problem as e:
        if e.kind is Kind.REJECTED:
            raise _exists(name, "it has other values.") from None
        if e.kind is Kind.FORBIDDEN:
            raise _exists(name, "to compare its values takes the right to patch secrets.") from None
        raise
    owners = [o.get("uid") for o in there["metadata"].get("ownerReferences") or ()]
    same = there.get("immutable") is True and there.get("data") == secret["data"]
    if not same or owners != [o["uid"] for o in secret["metadata"]["ownerReferences"]]:
        raise _exists(name, f"the Secret {secret['metadata']['name']} is not the one of this request.")


def _exists(name: str, why: str) -> Problem:
    return Problem(Kind.ALREADY_EXISTS, f"restatements.lethe.dev {name} exists, and {why} Choose another name.")


def _invalid(field: str, expected: str) -> Problem:
    error = field_error(("body", *field.split(".")), expected)
    return Problem(Kind.INVALID_REQUEST, f"{error.field}: {expected}", errors=(error,))


def _is_erased(resource: Mapping[str, Any]) -> bool:
    return any(c.type == "Erased" and c.status == "True" for c in restatement_of(resource).conditions)


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
