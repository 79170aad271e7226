"""The Dataset resource as a frozen value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lethe.contract.dataset import DatasetSpec
from lethe.contract.kubernetes import PAUSED
from lethe.contract.status import DatasetStatus, StoredStatus, stored_status

from lethe_operator.resources.common import Meta, parse_meta, parse_spec


@dataclass(frozen=True)
class Dataset:
    """A Dataset whose spec matches the schema; `stored` is its status."""

    meta: Meta
    spec: DatasetSpec
    stored: StoredStatus[DatasetStatus]

    @property
    def status(self) -> DatasetStatus:
        """The parsed status."""
        return self.stored.parsed

    @property
    def claim(self) -> str:
        """The value of the table property by which this Dataset claims its table."""
        return self.meta.full_name

    @property
    def paused(self) -> bool:
        """Whether the annotation lethe.dev/paused is set: then no run starts, and active ones continue."""
        return self.meta.is_set(PAUSED)


def parse_dataset(body: Mapping[str, Any]) -> Dataset:
    """Parse a Dataset.

    Raises:
        InvalidSpec: A spec that the schema of the CRD should have rejected; the message names the first invalid field.
    """
    return Dataset(parse_meta(body), parse_spec(DatasetSpec, "Dataset", body), stored_status(DatasetStatus, body))
