"""A Dataset that consolidates whatever waits, and what is decided about it."""

from lethe.contract.run import RunKind
from lethe_operator.actions import Actions
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Observation

from tests.support.builders import NOW
from tests.support.resources import SETTINGS, a_buffered, a_dataset
from tests.support.statuses import decide

EAGER = {"consolidation": {"minBatches": 1}}
DATASET = a_dataset(**EAGER)
A = a_buffered("A")


def decided(world: Observation, dataset: Dataset = DATASET) -> Actions:
    return decide(dataset, world, NOW, SETTINGS)


def kinds(actions: Actions) -> list[RunKind]:
    return [launch.run.kind for launch in actions.launches]
