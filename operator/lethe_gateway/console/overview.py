"""Pages about what needs attention, in all namespaces and in one."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Query, Request, Response
from lethe.kube import DATASETS, RESTATEMENTS

from lethe_gateway.api.documents import CallerOf, ServicesOf
from lethe_gateway.console import attention, pages
from lethe_gateway.console.attention import Attention
from lethe_gateway.console.pages import ConsoleListOf
from lethe_gateway.identity.caller import Right
from lethe_gateway.lookup import ListRequest, scanned
from lethe_gateway.resources.datasets import dataset_of

router = APIRouter(include_in_schema=False)
SHOWN: Final = 50  # things of one namespace on the overview
PAGE: Final = 200
Subject = Literal["datasets", "restatements"]
_SOURCES: Final = {
    "datasets": (DATASETS, lambda d: attention.of_dataset(dataset_of(d))),
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
    starts = {"datasets": "", "restatements": ""}
    parts = [_looked(ListRequest(services, caller, namespace, SHOWN), starts) for namespace in own]
    return pages.page(request, "overview.html", parts=parts, section="overview", refresh_seconds=_EVERY_SECONDS)


@router.get("/console/{namespace}/attention")
def show_attention(
    request: Request,
    asked: ConsoleListOf,
    of: Annotated[Subject, Query()] = "datasets",
) -> Response:
    """What needs attention among the next resources of a namespace."""
    part = _looked(replace(asked, limit=PAGE), {of: asked.cursor})
    return pages.page(request, "attention.html", part=part, namespace=asked.namespace, section="attention", of=of)


def _looked(asked: ListRequest, starts: dict[str, str]) -> AttentionPart:
    items: list[Attention] = []
    cursors: dict[str, str] = {}
    for subject, start in starts.items():
        kind, needs = _SOURCES[subject]
        page = scanned(replace(asked, cursor=start), kind, {"attention": True}, needs)
        items += page["items"]
        if page["next_cursor"]:
            cursors[subject] = page["next_cursor"]
    items.sort(key=lambda a: (a.urgency, a.dataset, a.restatement))
    return AttentionPart(asked.namespace, items, cursors)
