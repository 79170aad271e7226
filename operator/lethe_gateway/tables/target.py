"""The table of a Dataset, as a value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lethe_gateway.problems import Kind, Problem


@dataclass(frozen=True)
class Target:
    """Which table to open, and whose it must be."""

    catalog: str
    name: str  # "namespace.table"
    claim: str  # "<kubernetes namespace>/<Dataset>": the value of the table property lethe.dataset
    batch_column: str

    def __str__(self) -> str:
        return f"{self.catalog}.{self.name}"


def target_of(dataset: Mapping[str, Any]) -> Target:
    """Raises: Problem (`no-table`), for a spec that names no table."""
    metadata, spec = dataset["metadata"], dataset.get("spec") or {}
    table = spec.get("table") or {}
    if not all(isinstance(table.get(k), str) for k in ("catalog", "name")):
        raise Problem(Kind.NO_TABLE, "spec.table of the Dataset names no table. Correct the Dataset.")
    claim = f"{metadata.get('namespace', '')}/{metadata['name']}"
    return Target(table["catalog"], table["name"], claim, str(spec.get("batchColumn") or "batch_id"))
