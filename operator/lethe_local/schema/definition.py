"""A resource definition (CRD), as far as it says which documents are valid. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Json = Mapping[str, Any]


@dataclass(frozen=True)
class Definition:
    """One version of a definition."""

    group: str
    version: str
    kind: str
    plural: str
    short_names: tuple[str, ...]
    schema: Json  # openAPIV3Schema
    columns: tuple[Json, ...]  # additionalPrinterColumns

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}"


def definition_of(document: Json) -> Definition:
    """The stored version of a CustomResourceDefinition."""
    spec = document["spec"]
    version = next(v for v in spec["versions"] if v["storage"])
    names = spec["names"]
    return Definition(
        group=spec["group"],
        version=version["name"],
        kind=names["kind"],
        plural=names["plural"],
        short_names=tuple(names.get("shortNames") or ()),
        schema=version["schema"]["openAPIV3Schema"],
        columns=tuple(version.get("additionalPrinterColumns") or ()),
    )
