"""The route of changes: server-sent events."""

from typing import Annotated

from fastapi import APIRouter, Header, Query, Response

from lethe_gateway.answers import responses
from lethe_gateway.api.parameters import CallerOf, Namespace, ServicesOf
from lethe_gateway.lookup import require_namespace
from lethe_gateway.resources.changes import KINDS, Place, place_of, text_of
from lethe_gateway.streaming import ChangeStream, EventStreamResponse

router = APIRouter(tags=["changes"])
_RESPONSES = {
    **{k: v for k, v in responses().items() if k != 304},
    200: {
        "description": "Events: `ready`, `dataset`, `restatement`, `run`, `reset`, `end`.",
        "content": {"text/event-stream": {"schema": {"type": "string"}}},
    },
}


@router.get("/v1/namespaces/{namespace}/changes", response_class=Response, responses=_RESPONSES)
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
    place = place or Place(*versions)
    stream = ChangeStream(services, caller, namespace, dataset, place)
    return EventStreamResponse(stream, text_of("ready", {"namespace": namespace}, place.id))
