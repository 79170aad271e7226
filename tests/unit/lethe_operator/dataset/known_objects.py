"""Objects as a watch reports them, for the tests of what the operator knows."""

from typing import Any

from lethe.kube import Document
from lethe_operator.dataset.objects import WatchedObjects
from lethe_operator.resources.dataset import Dataset

from tests.support.resources import a_dataset_body

MANAGED = {"app.kubernetes.io/managed-by": "lethe", "app.kubernetes.io/name": "lethe"}


def a_body(name: str, version: int, uid: str = "", **fields: Any) -> Document:
    """An object as a watch reports it; labels are those of an object that is watched, and more."""
    labels = {**MANAGED, **fields.pop("labels", {})}
    metadata = {"namespace": "ns", "name": name, "uid": uid or f"uid-{name}", "resourceVersion": str(version)}
    return {"metadata": {**metadata, "labels": labels, **fields.pop("meta", {})}, **fields}


def a_dataset_at(version: int, uid: str = "u", generation: int = 1, **spec: Any) -> Document:
    return a_dataset_body("d", meta={"resourceVersion": str(version), "uid": uid, "generation": generation}, **spec)


def known(objects: WatchedObjects) -> Dataset:
    found = objects.dataset("ns", "d")
    assert isinstance(found, Dataset)
    return found
