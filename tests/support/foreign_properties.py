"""Tables and REST catalogs whose authors set each property that the clients of Iceberg know, to a canary's address or a class."""

import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lethe.storage.s3 import s3_client
from lethe.uri import bucket_and_key
from pyiceberg.table import Table

from tests.support.client_properties import reviewed
from tests.support.servers.canary import Canary
from tests.support.servers.faulty_proxy import before

# Ends the process that calls it, as a class is called: with the merged properties, which Python then prints.
ENDS = "sys.exit"
_CLASS = re.compile(r"impl|class|factory|provider|manager|reporter|strategy|signer$|auth\.type")
# What the search takes for properties, and would not be metadata of a table any more.
_NO_TEXT = ("format-version", "schema.name-mapping.default")


def names(*decisions: str) -> list[str]:
    """The names of the properties about which a decision is one of these."""
    found = {n for client in ("pyiceberg", "java") for d in decisions for n in reviewed(client)[d]}
    return sorted(f"{n}lake" if n.endswith(".") else n for n in found if n not in _NO_TEXT)


def canaries(canary: Canary, *decisions: str) -> dict[str, str]:
    """Each of these properties, with the address of the canary, or a class that ends the process."""
    values = {n: ENDS if _CLASS.search(n) else canary.uri for n in names(*decisions)}
    # Of a FileIO: whose credentials to ask for.
    return {**values, "lethe.vended-for": "air.flights", "parquet.crypto.factory.class": ENDS}


def poison(table: Table, properties: Mapping[str, str], store: Mapping[str, str]) -> None:
    """Add properties to the metadata file of a table in S3, as its author could have written it."""
    bucket, key = bucket_and_key(table.metadata_location)
    client = s3_client(store)
    document = json.loads(client.get_object(Bucket=bucket, Key=key)["Body"].read())
    document["properties"] |= properties
    client.put_object(Bucket=bucket, Key=key, Body=json.dumps(document).encode())


@contextmanager
def catalog_of_a_tenant(tables: Mapping[str, Table], answers: Mapping[str, str]) -> Iterator[str]:
    """The address of a REST catalog that answers with these properties wherever it may answer with any.

    Args:
        tables: By name, "namespace.table".
    """
    endpoints = ["GET /v1/{prefix}/namespaces/{namespace}/tables/{table}", "GET /v1/{prefix}/namespaces"]
    vended = [{"prefix": "s3://", "config": dict(answers)}]

    def answer(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:  # noqa: ARG001
        steps = path.partition("?")[0].strip("/").split("/")
        match method, steps[1:]:
            case "GET", ["config"]:
                return _json(200, {"defaults": answers, "overrides": answers, "endpoints": endpoints})
            case "GET", ["namespaces"]:
                return _json(200, {"namespaces": [["air"]]})
            case "GET", ["namespaces", namespace, "tables", name] if f"{namespace}.{name}" in tables:
                table = tables[f"{namespace}.{name}"]
                metadata = {
                    **json.loads(table.metadata.model_dump_json()),
                    "properties": {**table.properties, **answers},
                }
                loaded = {"metadata-location": table.metadata_location, "metadata": metadata}
                return _json(200, {**loaded, "config": answers, "storage-credentials": vended})
        return _json(
            404, {"error": {"message": "Table does not exist: x", "type": "NoSuchTableException", "code": 404}}
        )

    with before(answer) as server:
        yield server.endpoint


def _json(status: int, document: Mapping[str, Any]) -> tuple[int, list[tuple[str, str]], bytes]:
    return status, [("Content-Type", "application/json")], json.dumps(document).encode()
