"""Conditions of resources. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from pydantic import Field

from lethe_gateway.problems import Document


class Condition(Document):
    """A condition, as Kubernetes defines it."""

    type: str = Field(description="What it is about, such as Ready.")
    status: str = Field(description="True, False or Unknown.")
    reason: str | None = Field(default=None, description="Why, as one CamelCase word.")
    message: str | None = Field(default=None, description="The same in words.")
    last_transition_time: datetime | None = Field(default=None, description="Since when it has this status.")


def conditions_of(resource: Mapping[str, Any]) -> list[Condition]:
    """The conditions in the status of a resource, in their order; empty if it has no status."""
    documents = (resource.get("status") or {}).get("conditions") or ()
    return [Condition.model_validate(c) for c in documents]
