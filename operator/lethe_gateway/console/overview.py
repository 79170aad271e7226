"""Pages about what needs attention, in all namespaces and in one."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from lethe.kube import DATASETS, RESTATEMENTS

from lethe_gateway.api.documents import CallerOf, Cursor, Namespace, ServicesOf
from lethe_gateway.console import attention, pages
from lethe_gateway.console.attention import Attention
from lethe_gateway.identity.caller import Caller, Right
from lethe_gateway.lookup import scanned
from lethe_gateway.services import Services

router = APIRouter(include_in_schema=False)
SHOWN: Final = 50  # things of one namespace on the overview
PAGE: Final = 200
Subject = Literal["datasets", "restatements"]
_SOURCES: Final = {
    "datasets": (DATASETS, attention.of_dataset),
    "restatements": (RESTATEMENTS, attention.of_restatement),
}
# There may be any number of resources, so a page looks at a part of them, and says where to go on.
_EVERY_SECONDS: Final = 30


@dataclass(frozen=True)
class AttentionPart:
    """What needs attention among a part of the resources of a namespace."""

    namespace: str
    found: Sequence[Attention]
    cursors: dict[str, str]
    """Where to go on, by subject; empty: everything was looked at."""


@router.get("/console/")
def show_overview(request: Request, services: ServicesOf, caller: CallerOf) -> Response:
    """What needs attention in the namespaces that the caller may see."""
    own = sorted(n for n in services.settings.namespaces if services.identity.may(caller, Right.to_list(n)))
    parts = [_part(services, caller, namespace) for namespace in own]
    return pages.page(request, "overview.html", parts=parts, section="overview", refresh_seconds=_EVERY_SECONDS)


@router.get("/console/{namespace}/attention")
def show_attention(
    request: Request,
    services: ServicesOf,
    caller: CallerOf,
    namespace: Namespace,
    of: Annotated[Subject, Query()] = "datasets",
    cursor: Cursor = "",
) -> Response:
    """What needs attention among the next resources of a namespace."""
    part = _looked(services, caller, namespace, {of: cursor}, PAGE)
    return pages.page(request, "attention.html", part=part, namespace=namespace, section="attention", of=of)


def _part(services: Services, caller: Caller, namespace: str) -> AttentionPart:
    return _looked(services, caller, namespace, {"datasets": "", "restatements": ""}, SHOWN)


def _looked(services: Services, caller: Caller, namespace: str, starts: dict[str, str], limit: int) -> AttentionPart:
    items: list[Attention] = []
    cursors: dict[str, str] = {}
    for subject, start in starts.items():
        kind, needs = _SOURCES[subject]
        page = scanned(services, caller, kind, namespace, (limit, start, {"attention": True}), needs)
        items += page["items"]
        if page["next_cursor"]:
            cursors[subject] = page["next_cursor"]
    items.sort(key=lambda a: (a.urgency, a.dataset, a.restatement))
    return AttentionPart(namespace, items, cursors)
