"""How answers show models of resources, of which they may leave out fields. Pure."""

from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeVar

from lethe.contract.schema import ApiModel, SameAs
from lethe.contract.status import Condition, Time, parse_status

M = TypeVar("M", bound=ApiModel)


def without(*fields: str) -> Callable[[type[M]], type[M]]:
    """Leave these fields out of answers with the model, and out of its schema."""

    def hide(model: type[M]) -> type[M]:
        for field in fields:
            model.model_fields[field].exclude = True
        model.model_rebuild(force=True)
        return model

    return hide


class ConditionView(ApiModel):
    """A condition, as Kubernetes defines it. It may be of another version, so it need not be complete."""

    type: Annotated[str, SameAs(Condition)]
    status: Annotated[str, SameAs(Condition)]
    reason: Annotated[str | None, SameAs(Condition)] = None
    message: Annotated[str | None, SameAs(Condition)] = None
    last_transition_time: Annotated[Time | None, SameAs(Condition)] = None


class _Conditions(ApiModel):
    conditions: tuple[ConditionView, ...] = ()


def conditions_of(resource: Mapping[str, Any]) -> tuple[ConditionView, ...]:
    """The conditions in the status of a resource, in their order; empty if it has no status."""
    return parse_status(_Conditions, part(resource, "status")).conditions


def part(document: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """An object in a document; empty if there is none."""
    for name in path:
        inner = document.get(name)
        document = inner if isinstance(inner, Mapping) else {}
    return document
