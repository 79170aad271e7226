"""Properties of a REST catalog, which PyIceberg and Spark must send alike. The server is Iceberg's own."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qs

import pytest
from lethe.iceberg import catalogs
from lethe_spark.apps.session import make_session
from pyspark.sql import SparkSession

from tests.spark.parameters import some
from tests.support.lake import Lake
from tests.support.servers.faults import Switch
from tests.support.servers.faulty_proxy import before, forward_to

CALLERS = ("python", "spark")


@dataclass
class Heard:
    """Requests to the catalog: their path, headers and body."""

    requests: list[tuple[str, dict[str, str], bytes]] = field(default_factory=list)

    def headers(self, name: str) -> set[str]:
        """The values that requests had for a header, other than those for a token."""
        return {h.get(name.lower(), "") for path, h, _ in self.requests if not path.endswith("/tokens")}


@pytest.fixture
def server(rest: Switch) -> str:
    """The server of the catalog `rest`."""
    assert rest.fault is None
    return str(catalogs.properties("rest")["uri"])


@contextmanager
def heard(server: str, lake: Lake, name: str, **properties: str) -> Iterator[Heard]:
    """A catalog of that name, whose requests are heard."""
    found, forward = Heard(), forward_to(server)

    def noted(method: str, path: str, headers: Any, body: bytes) -> tuple[int, list[tuple[str, str]], bytes]:
        found.requests.append((path.partition("?")[0], {k.lower(): v for k, v in headers.items()}, body))
        return forward(method, path, headers, body)

    with before(noted) as proxy:
        lake.add_catalog(name, type="rest", uri=proxy.endpoint, **properties)
        yield found


def ask(caller: str, spark: SparkSession, name: str) -> None:
    """Ask the catalog for its namespaces."""
    if caller == "python":
        catalogs.load(name).list_namespaces()
    else:
        make_session(name)
        spark.sql(f"SHOW NAMESPACES IN {name}").collect()


@pytest.mark.parametrize("caller", some(CALLERS, "spark"))
def test_requests_are_signed(spark: SparkSession, lake: Lake, server: str, caller: str) -> None:
    signing = {
        "rest.sigv4-enabled": "true",
        "rest.signing-region": "eu-central-1",
        "rest.signing-name": "glue",
        "client.access-key-id": "AKIDEXAMPLE",
        "client.secret-access-key": "of-the-signer",
        "client.region": "eu-central-1",
    }
    with heard(server, lake, f"signed_{caller}", **signing) as found:
        ask(caller, spark, f"signed_{caller}")

    assert found.requests
    for value in found.headers("Authorization"):
        assert value.startswith("AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/")
        assert "/eu-central-1/glue/aws4_request" in value


@pytest.mark.parametrize("caller", some(CALLERS, "python"))
def test_tokens_are_asked_for_an_audience(spark: SparkSession, lake: Lake, server: str, caller: str) -> None:
    wanted = {"scope": "lake:read", "audience": "https://lake.example", "resource": "urn:lake"}
    with heard(server, lake, f"for_audience_{caller}", credential="me:secret", **wanted) as found:
        ask(caller, spark, f"for_audience_{caller}")

    asked = [parse_qs(body.decode()) for path, _, body in found.requests if path.endswith("/tokens")]
    assert asked
    assert {k: asked[0][k] for k in wanted} == {k: [v] for k, v in wanted.items()}
    assert all(v.startswith("Bearer ") for v in found.headers("Authorization"))


@pytest.mark.parametrize("caller", some(CALLERS, "spark"))
def test_each_request_has_the_headers(spark: SparkSession, lake: Lake, server: str, caller: str) -> None:
    with heard(server, lake, f"with_header_{caller}", **{"header.X-Tenant": "lake-1"}) as found:
        ask(caller, spark, f"with_header_{caller}")

    assert found.headers("X-Tenant") == {"lake-1"}
    assert found.headers("X-Iceberg-Access-Delegation") == {"vended-credentials"}
