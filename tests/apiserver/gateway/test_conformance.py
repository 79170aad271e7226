"""Random requests against a running gateway, made from its OpenAPI document: no 5xx, and every answer is as the document says."""

from collections import Counter
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi import checks

from tests.support.gateway_site import Site

EXAMPLES = min(settings.default.max_examples, 100)  # for each route and mode: an example is a request
CHECKS = [
    not_a_server_error,
    checks.status_code_conformance,
    checks.content_type_conformance,
    checks.response_headers_conformance,
    checks.response_schema_conformance,
]
# That exist: with random names, almost every answer would be a 404.
KNOWN = {"namespace": "default", "dataset": "flights", "restatement": "revert-b"}
STREAMS = "/changes"  # they do not end; test_changes.py


def _operations(site: Site) -> list[Any]:
    with site.gateway.client() as client:
        schema = schemathesis.openapi.from_dict(client.get("/openapi.json").json())
    schema.config.update(base_url=site.gateway.url)
    return [o for result in schema.get_all_operations() if not (o := result.ok()).path.endswith(STREAMS)]


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
def test_random_requests_get_conforming_answers(site: Site, mode: GenerationMode) -> None:
    """With unusual characters, and with values and parameters that the document does not allow."""
    before = len(site.gateway.access())
    authorization = {"Authorization": f"Bearer {site.token('analyst')}"}
    for operation in _operations(site):
        names = {p.name for p in operation.path_parameters}
        known = {k: v for k, v in KNOWN.items() if k in names}

        @settings(max_examples=EXAMPLES, suppress_health_check=list(HealthCheck))
        @given(case=operation.as_strategy(mode, path_parameters=known if mode is GenerationMode.POSITIVE else None))
        def conforms(case: schemathesis.Case) -> None:
            case.call_and_validate(headers=authorization, checks=CHECKS)

        conforms()

    statuses = Counter(line["status"] for line in site.gateway.access()[before:])
    assert statuses[200 if mode is GenerationMode.POSITIVE else 400] > EXAMPLES
