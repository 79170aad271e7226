"""What an object says of who asked for it."""

from datetime import UTC, datetime
from typing import Any

from lethe.contract.run import Manager, Provenance
from lethe_operator.resources.restatement import TEXT_AT_MOST, parse_restatement, provenance_of

WRITTEN = datetime(2026, 3, 1, 11, 0, tzinfo=UTC)


def a_body(spec: dict[str, Any], **metadata: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": "erase", "uid": "u-1", "creationTimestamp": "2026-03-01T11:00:00Z", **metadata},
        "spec": {"datasetRef": {"name": "flights"}, **spec},
    }


def found_of(body: dict[str, Any]) -> Provenance:
    return provenance_of(body, parse_restatement(body).spec)


ERASE = {"operation": "Erase", "reason": "asked for", "ticket": "GDPR-17"}


def test_reason_ticket_uid_and_time_are_the_objects_own() -> None:
    found = found_of(a_body(ERASE))

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

    assert found.marks == {
        "lethe.dev/requested-by": "x" * TEXT_AT_MOST,
        "argocd.argoproj.io/tracking-id": "erasures:lethe.dev/Restatement:ns/erase",
        "kustomize.toolkit.fluxcd.io/name": "erasures",
    }


def test_of_each_operation_it_is_kept_who_asked_by_annotation_or_by_program() -> None:
    managers = [
        {"manager": name, "operation": "Update", "time": "2026-03-01T11:00:00Z"} for name in ("argocd", "kubectl")
    ]
    annotated = {"annotations": {"lethe.dev/requested-by": "ada"}}
    bodies = [
        a_body({"operation": "Revert"}, managedFields=managers, **annotated),
        a_body({"operation": "Revert"}, managedFields=managers),
        a_body({"operation": "Revert"}),
    ]

    assert [found_of(body).requested_by for body in bodies] == ["ada", "argocd", ""]
