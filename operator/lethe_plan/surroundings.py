"""What effects depend on: the resources of a namespace after the apply, tables and buffers. Values that become `Observation`s."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lethe.buffer.digest import BufferDigest
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NotListed, Observation, Unavailable
from lethe_operator.resources.restatement import Restatement
from lethe_operator.resources.vacuum_policy import VacuumPolicy, match

from lethe_plan.tables import Observed, Tables, view


@dataclass(frozen=True)
class After:
    """The resources of a namespace as they are after the apply."""

    datasets: Mapping[str, Dataset]
    policies: tuple[VacuumPolicy, ...]
    policies_before: tuple[VacuumPolicy, ...]
    restatements: Mapping[str, Restatement]
    """Those of the manifests, and those that Undos name."""

    def policy_of(self, dataset: Dataset) -> VacuumPolicy | None:
        """The policy that decides for a Dataset; None: none selects it."""
        return match(self.policies, dataset.meta.labels).decides


@dataclass
class Surroundings:
    """Reads a buffer or a table when an effect needs it."""

    after: After
    tables: Tables
    now: datetime

    def __post_init__(self) -> None:
        self._buffers: dict[str, BufferDigest | NotListed | Unavailable] = {}

    def table(self, dataset: Dataset) -> Observed:
        return self.tables.of(dataset)

    def buffer(self, dataset: Dataset) -> BufferDigest | NotListed | Unavailable:
        name = dataset.meta.full_name
        if name not in self._buffers:
            self._buffers[name] = self.tables.buffer(dataset, self.table(dataset), self.now)
        return self._buffers[name]

    def world(self, dataset: Dataset, with_buffer: bool = True) -> Observation:
        """What the operator's decisions about a Dataset would depend on."""
        return Observation(
            restatements=tuple(
                r for r in self.after.restatements.values() if r.spec.dataset_ref.name == dataset.meta.name
            ),
            policies=self.after.policies,
            table=view(self.table(dataset)),
            buffer=self.buffer(dataset) if with_buffer else NotListed(),
            overlapping_datasets=tuple(d for n, d in self.after.datasets.items() if n != dataset.meta.name),
            catalogs=self.tables.places(),
        )
