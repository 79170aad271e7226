"""The kinds of objects that the API has. Pure, apart from reading the definitions of Lethe's own kinds."""

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from typing import Final

import yaml
from lethe_operator.kube import (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SERVICE_ACCOUNTS,
    ResourceKind,
)

from lethe_local.schema.definition import Definition, definition_of

SECRETS: Final = ResourceKind("/api/v1", "secrets", "Secret")
_OF_KUBERNETES: Final = (
    CONFIG_MAPS,
    EVENTS,
    JOBS,
    LEASES,
    NAMESPACES,
    PODS,
    ROLE_BINDINGS,
    ROLES,
    SECRETS,
    SERVICE_ACCOUNTS,
)


@dataclass(frozen=True)
class Kind:
    """A kind of objects."""

    resource: ResourceKind
    definition: Definition | None = None  # None: its documents are not checked

    @property
    def api_version(self) -> str:
        return self.resource.api.removeprefix("/apis/").removeprefix("/api/")

    @property
    def namespaced(self) -> bool:
        return self.resource != NAMESPACES

    @property
    def key(self) -> str:
        """The name of the collection in messages and in the store: datasets.lethe.dev."""
        group, _, version = self.api_version.rpartition("/")
        return f"{self.resource.plural}.{group}" if group and version else self.resource.plural


def kinds() -> tuple[Kind, ...]:
    """All kinds."""
    return (*(Kind(r) for r in _OF_KUBERNETES), *_of_lethe())


def _of_lethe() -> Iterator[Kind]:
    for path in sorted(files("lethe_local").joinpath("crds").iterdir(), key=lambda p: p.name):
        if path.name.endswith(".yaml"):
            definition = definition_of(yaml.safe_load(path.read_text()))
            api = f"/apis/{definition.group}/{definition.version}"
            yield Kind(ResourceKind(api, definition.plural, definition.kind), definition)
