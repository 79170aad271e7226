"""RunEvents of OpenLineage against its published JSON Schemas.

No package contains them. `LETHE_OPENLINEAGE_SPEC` names the folder `spec` of a checkout of OpenLineage. Without it these tests
are skipped, and test_lineage.py compares the events with the official client's.
"""

import json
import os
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from lethe.contract.kind import RunFamily
from lethe_operator.decide.publishing.event_types import BatchPromoted, TableOf
from lethe_operator.decide.publishing.openlineage import LineageCommit, run_event
from referencing import Registry, Resource

from tests.support.builders import NOW, RUN

SPEC = os.environ.get("LETHE_OPENLINEAGE_SPEC", "")
pytestmark = pytest.mark.skipif(not SPEC, reason="LETHE_OPENLINEAGE_SPEC names no folder with the schemas")


@pytest.fixture(scope="module")
def registry() -> Registry[Any]:
    files = [Path(SPEC, "OpenLineage.json"), *Path(SPEC, "facets").glob("*.json")]
    resources = [Resource.from_contents(json.loads(f.read_text())) for f in files]
    return Registry().with_resources((r.id() or "", r) for r in resources)


def check(document: Any, schema: str, registry: Registry[Any]) -> None:
    formats = Draft202012Validator.FORMAT_CHECKER
    Draft202012Validator({"$ref": schema}, registry=registry, format_checker=formats).validate(document)


def facets(node: Any) -> dict[str, Any]:
    """Every facet in an event, by the name of its field."""
    if isinstance(node, list):
        return {k: v for item in node for k, v in facets(item).items()}
    if not isinstance(node, dict):
        return {}
    own = {k: v for k, v in node.items() if isinstance(v, dict) and "_schemaURL" in v}
    return own | {k: v for item in node.values() for k, v in facets(item).items()}


def an_event(family: RunFamily = RunFamily.CONSOLIDATION, unfinished: bool = False) -> dict[str, Any]:
    table = TableOf(catalog="lake", name="air.flights", uuid="u")
    promoted = BatchPromoted(table=table, ledger_version=1, batch_id="A", rows=3, bytes=30)
    names = ("air.flights", "lake", "s3://lake/warehouse/flights", "s3a://lake/buffer/")
    event: dict[str, Any] = json.loads(
        run_event(LineageCommit("lethe", "ns", "flights", RUN, family, unfinished, NOW, 7, *names), [promoted])
    )
    return event


@pytest.mark.parametrize("unfinished", [False, True])
@pytest.mark.parametrize("family", RunFamily)
def test_events_and_their_facets_are_valid(family: RunFamily, unfinished: bool, registry: Registry[Any]) -> None:
    event = an_event(family, unfinished)

    check(event, event["schemaURL"], registry)
    assert facets(event).keys() == {"jobType", "symlinks", "version", "outputStatistics"}
    for field, facet in facets(event).items():
        schema = facet["_schemaURL"].partition("#")[0]
        assert field in registry.contents(schema)["properties"]
        check({field: facet}, schema, registry)


def test_the_schemas_refuse_what_is_wrong(registry: Registry[Any]) -> None:
    event = an_event()
    wrong = {**event, "run": {"runId": "7"}}
    facet = {**facets(event)["jobType"], "processingType": 1}

    with pytest.raises(ValidationError, match="uuid"):
        check(wrong, event["schemaURL"], registry)
    with pytest.raises(ValidationError, match="string"):
        check({"jobType": facet}, facet["_schemaURL"].partition("#")[0], registry)
