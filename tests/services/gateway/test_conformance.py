"""Random requests against a running gateway, made from its OpenAPI document: no 5xx, and every answer is as the document says."""

import schemathesis
from hypothesis import HealthCheck, Phase, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.services.gateway.conftest import Site

EXAMPLES = 25  # for each route
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]


def test_random_requests_get_conforming_answers(site: Site) -> None:
    """Also with malformed values, unknown parameters and unusual characters."""
    with site.gateway.client(site.token("analyst")) as client:
        document = client.get("/openapi.json").json()
        token = client.headers["Authorization"]
    schema = schemathesis.openapi.from_dict(document)
    schema.config.update(base_url=site.gateway.url)
    tried = set()
    for result in schema.get_all_operations():
        operation = result.ok()
        if operation.path.endswith("/changes"):
            continue  # it does not end; test_changes.py
        case = operation.as_strategy(generation_mode=schemathesis.GenerationMode.POSITIVE)
        tried.add(operation.path)

        def answer_conforms(case: schemathesis.Case) -> None:
            known = {"namespace": "default", "dataset": "flights", "restatement": "revert-b"}
            path = {k: known.get(k, v) for k, v in (case.path_parameters or {}).items()}
            case.path_parameters = path
            case.call_and_validate(headers={"Authorization": token}, checks=CHECKS)

        _each(case, answer_conforms)
    assert len(tried) == len(document["paths"]) - 1
