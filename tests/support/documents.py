"""Custom resources as the documents that users apply. Without any code of the product."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]


def dataset_spec(**spec: Any) -> Document:
    """The smallest valid spec of a Dataset, with these fields set or replaced."""
    return {
        "table": {"catalog": "main", "name": "air.flights"},
        "batchColumn": "batch_id",
        "buffer": {"uri": "s3://lake/buffer/flights"},
        **spec,
    }


def resource(kind: str, name: str, spec: Document, **metadata: Any) -> Document:
    return {"apiVersion": "lethe.dev/v1beta1", "kind": kind, "metadata": {"name": name, **metadata}, "spec": spec}


@cache
def read_yaml(path: Path) -> Any:
    """The only document of a file of this checkout; who changes it changes it for all."""
    return yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
