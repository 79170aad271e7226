"""What an object says of who asked for it."""

from datetime import UTC, datetime
from typing import Any

import pytest
from lethe.contract.run import Manager, Provenance
from lethe_operator.resources.restatement import TEXT_AT_MOST, parse_restatement, provenance_of

WRITTEN = datetime(2026, 3, 1, 11, 0, tzinfo=UTC)


def a_body(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "erase", "uid": "u-1", "creationTimestamp": "2026-03-01T11:00:00Z", **metadata},
        "spec": {"datasetRef": {"name": "flights"}, **spec},
    }


def found_of(body: dict[str, Any]) -> Provenance | None:
    return provenance_of(body, parse_restatement(body).spec)


ERASE = {"operation": "Erase", "reason": "asked for", "ticket": "GDPR-17"}


def test_reason_ticket_uid_and_time_are_the_objects_own() -> None:
    found = found_of(a_body(ERASE))

    assert found is not None
    assert (found.reason, found.ticket, found.uid, found.created_time) == ("asked for", "GDPR-17", "u-1", WRITTEN)
    assert (found.managers, found.marks) == ((), {})


def test_managers_are_those_of_the_object_and_not_of_its_status() -> None:
    fields = [
        {
            "manager": "kubectl-create",
            "operation": "Update",
            "time": "2026-03-01T11:00:00Z",
            "fieldsV1": {"f:spec": {}},
        },
        {"manager": "lethe", "operation": "Update", "subresource": "status", "time": "2026-03-01T12:00:00Z"},
    ]

    found = found_of(a_body(ERASE, managedFields=fields))

    assert found is not None
    assert found.managers == (Manager(name="kubectl-create", operation="Update", time=WRITTEN),)


def test_deployment_tools_and_people_are_named_by_known_marks_alone() -> None:
    annotations = {
        "lethe.dev/requested-by": "x" * 999,
        "argocd.argoproj.io/tracking-id": "erasures:lethe.dev/Restatement:ns/erase",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "other": "1",
    }
    labels = {"kustomize.toolkit.fluxcd.io/name": "erasures", "team": "a"}

    found = found_of(a_body(ERASE, annotations=annotations, labels=labels))

    assert found is not None
    assert found.marks == {
        "lethe.dev/requested-by": "x" * TEXT_AT_MOST,
        "argocd.argoproj.io/tracking-id": "erasures:lethe.dev/Restatement:ns/erase",
        "kustomize.toolkit.fluxcd.io/name": "erasures",
    }


@pytest.mark.parametrize(
    ("spec", "kept"),
    [
        ({"operation": "Revert"}, False),
        ({"operation": "Revert", "evictBySeconds": 0}, True),
        ({"operation": "Erase"}, True),
    ],
)
def test_it_is_kept_of_those_whose_rows_must_go(spec: dict[str, Any], kept: bool) -> None:
    assert (found_of(a_body(spec)) is not None) is kept
