"""Manifests of Lethe's resources for tests on a cluster."""

from typing import Any

from tests.support.documents import Document as Object
from tests.support.documents import dataset_spec, resource

ROWS = {"column": "tailnum", "valuesFrom": {"secretKeyRef": {"name": "people", "key": "tails"}}}


def dataset_manifest(**spec: Any) -> Object:
    return _manifest("Dataset", dataset_spec(**spec))


def restatement_manifest(operation: str = "Revert", **spec: Any) -> Object:
    base: Object = {"datasetRef": {"name": "flights"}, "operation": operation, "suspend": True}
    if operation in ("Revert", "Replay", "Approve"):
        base["batchIds"] = ["a"]
    if operation == "Replay":
        base["replacement"] = {"batchId": "b", "uri": "s3://lake/restated/b/"}
    if operation == "Undo":
        base["undoes"] = {"name": "revert-a"}
    if operation in ("Erase", "Redact"):
        base["rows"] = ROWS
    if operation == "Redact":
        base["redact"] = {"columns": [{"column": "email", "method": "SetNull"}]}
    merged = {**base, **spec}
    return _manifest("Restatement", {k: v for k, v in merged.items() if v is not None})


def policy_manifest(**spec: Any) -> Object:
    return _manifest("VacuumPolicy", {"datasetSelector": {}, "triggers": {"activeTombstones": 10}, **spec})


def _manifest(kind: str, spec: Object) -> Object:
    return resource(kind, f"crds-{kind.lower()}", spec)


def named(name: str, body: Object) -> Object:
    body["metadata"]["name"] = name
    return body
