"""What a person changes from a page: it is created or annotated in the API server, with the person's rights."""

from typing import Any

import pytest
import yaml
from lethe.contract.kubernetes import APPROVE, VACUUM_NOW
from lethe_gateway.console import drafts

from tests.unit.lethe_gateway.console.conftest import Session, a_session
from tests.unit.lethe_gateway.console.test_pages import HOSTILE, D, R, lake


@pytest.fixture
def session() -> Session:
    return a_session(lake())


@pytest.fixture(scope="module")
def unchanged() -> Session:
    """For all tests in which nothing is created or annotated."""
    return a_session(lake())


def composed(session: Session, action: str, **fields: Any) -> Any:
    return session.post(
        f"{D}/restate", action=action, **{"operation": "Revert", "batch": "A", "reason": "twice", **fields}
    )


def test_the_yaml_of_a_form_is_the_resource(session: Session) -> None:
    answer = composed(session, "download", batch_ids="B\n C ", ticket="LAKE-7", evict_by_days="3")

    assert answer.headers["content-disposition"].startswith('attachment; filename="revert-flights-')
    body = yaml.safe_load(answer.text)
    assert body["kind"] == "Restatement"
    assert body["metadata"]["namespace"] == "ns"
    assert body["spec"] == {
        "datasetRef": {"name": "flights"},
        "operation": "Revert",
        "batchIds": ["A", "B", "C"],
        "reason": "twice",
        "ticket": "LAKE-7",
        "evictBySeconds": 259_200,
    }
    assert "batchIds" in composed(session, "yaml").text
    assert session.parts.writer.created == []


@pytest.mark.parametrize("name", ["r\u00e9sum\u00e9", "a\nb", 'a"b', "A", "-a", "a/b", "a" * 254])
def test_a_name_that_no_resource_can_have_is_a_wrong_field(unchanged: Session, name: str) -> None:
    """It would be part of a header of the download."""
    answer = composed(unchanged, "download", name=name)

    assert answer.status_code == 400
    assert "Lowercase letters, digits, hyphens and dots" in answer.text
    assert composed(unchanged, "download", name="a-1.b").status_code == 200


@pytest.mark.parametrize("days", ["0", "-1", "3651", "\u0663", "9" * 5000])
def test_a_number_of_days_that_is_none_is_a_wrong_field(unchanged: Session, days: str) -> None:
    answer = composed(unchanged, "yaml", evict_by_days=days)

    assert answer.status_code == 400
    assert "A number of days from 1 to 3,650" in answer.text


def test_other_separators_of_lines_are_part_of_an_id(session: Session) -> None:
    """Otherwise other batches would be taken back."""
    answer = composed(session, "download", batch_ids="B\u20281\r\nC\x0c2")

    assert yaml.safe_load(answer.text)["spec"]["batchIds"] == ["A", "B\u20281", "C\x0c2"]


@pytest.mark.parametrize(
    ("fields", "spec"),
    [
        ({"operation": "Erase"}, {"operation": "Erase", "batchIds": ["A"]}),
        (
            {"operation": "Replay", "new_batch": "A2", "uri": "s3://b/new", "key_columns": "id, tail"},
            {"operation": "Replay", "batchIds": ["A"],
             "replacement": {"batchId": "A2", "uri": "s3://b/new", "keyColumns": ["id", "tail"]}},
        ),
        ({"operation": "Undo", "undoes": "revert-1"}, {"operation": "Undo", "undoes": {"name": "revert-1"}}),
        (
            {"operation": "EraseRecords", "column": "tail", "secret": "s", "secret_key": "values"},
            {"operation": "Erase", "rows": {"column": "tail", "valuesFrom": {"secretKeyRef": {"name": "s", "key": "values"}}}},
        ),
        (
            {"operation": "Redact", "redactions": "email=null\r\nname=constant:-", "allow_unknown": "1"},
            {
                "operation": "Redact",
                "batchIds": ["A"],
                "redact": {
                    "columns": [
                        {"column": "email", "method": "SetNull"},
                        {"column": "name", "method": "Constant", "value": "-"},
                    ]
                },
            },
        ),
    ],
)  # fmt: skip
def test_each_operation_takes_its_own_fields(session: Session, fields: dict[str, str], spec: dict[str, Any]) -> None:
    assert composed(session, "apply", **fields).status_code == 303

    (created,) = session.parts.writer.created
    assert {k: v for k, v in created["spec"].items() if k not in ("datasetRef", "reason")} == spec


def test_what_a_person_creates_names_the_person_and_what_is_put_into_git_does_not(session: Session) -> None:
    composed(session, "apply")
    downloaded = yaml.safe_load(composed(session, "download").text)

    (created,) = session.parts.writer.created
    assert created["metadata"]["annotations"] == {"lethe.dev/requested-by": "ana"}
    assert "annotations" not in downloaded["metadata"]


def test_unknown_batches_are_accepted_only_if_the_form_says_so(session: Session) -> None:
    composed(session, "apply")
    composed(session, "apply", allow_unknown="1")
    composed(session, "apply", operation="Undo", batch="", undoes="revert-1", allow_unknown="1")

    assert [c["spec"].get("unknownBatches") for c in session.parts.writer.created] == [None, "Allow", None]


def test_a_plan_is_a_dry_run_and_is_applied_from_its_page(session: Session) -> None:
    where = composed(session, "plan").headers["location"]
    planned = session.parts.writer.created[-1]
    applied = session.post(f"{where}/apply")

    assert planned["spec"]["dryRun"] is True
    assert planned["metadata"]["name"].endswith(drafts.PLAN_SUFFIX)
    assert "Apply it to the table" not in session.get(where).text  # there is no plan yet
    assert "Apply it to the table" in session.get(f"{R}/plan-plan").text
    created = session.parts.writer.created[-1]
    assert "dryRun" not in created["spec"]
    assert applied.headers["location"] == f"{R}/{created['metadata']['name']}"
    assert where == f"{R}/{created['metadata']['name']}{drafts.PLAN_SUFFIX}"


def test_a_form_that_is_sent_twice_creates_one_restatement(session: Session) -> None:
    first, again = (composed(session, "apply") for _ in range(2))

    assert first.headers["location"] == again.headers["location"]
    assert len(session.parts.writer.created) == 1


def test_another_restatement_of_the_same_name_is_not_taken_for_it(session: Session) -> None:
    answer = composed(session, "apply", name="failed", batch="B")

    assert answer.status_code == 409
    assert "it exists" in answer.text


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"batch": ""}, "Name at least one batch."),
        ({"operation": "Replay"}, "Name the new batch."),
        ({"operation": "Undo"}, "Name the Restatement to take back."),
        ({"operation": "EraseRecords", "column": "c"}, "Name the Secret that contains the values."),
        ({"operation": "Redact", "redactions": "email"}, "is not of the form COLUMN=null"),
        ({"operation": "Redact", "redactions": "email=null", "column": "c"}, "Name batches, or a column with values."),
        ({"operation": "Redact", "redactions": "a=null", "batch": "", "column": "c"}, "Name the Secret that contains"),
        ({"operation": "Drop"}, "Choose one of Replay"),
        ({"evict_by_days": "-1"}, "A number of days"),
        ({"evict_by_days": "²"}, "A number of days"),
        ({"batch": "%ff"}, "an id is damaged"),
        ({"batch_ids": "\n".join(f"b{n}" for n in range(1001))}, "At most 1,000 ids"),
    ],
)
def test_a_field_that_is_wrong_says_what_is_expected(unchanged: Session, fields: dict[str, str], message: str) -> None:
    answer = composed(unchanged, "apply", **fields)

    assert answer.status_code == 400
    assert message in answer.text
    assert unchanged.parts.writer.created == []


def test_a_hostile_id_comes_back_as_it_was() -> None:
    session = a_session(lake(id=HOSTILE))
    id = "a\r\nb\u202e<%>" + HOSTILE[:50]
    composed(session, "apply", batch=drafts.text.encoded(id))

    assert session.parts.writer.created[-1]["spec"]["batchIds"] == [id]


def test_a_plan_of_a_vacuum_is_approved_as_it_was_shown(session: Session) -> None:
    assert session.post(f"{D}/vacuum/approve", plan="d1").status_code == 303
    assert session.parts.writer.annotated == [("flights", {APPROVE: "d1"})]


@pytest.mark.parametrize("plan", ["", "d0"])
def test_a_plan_that_has_changed_is_not_approved(unchanged: Session, plan: str) -> None:
    assert unchanged.post(f"{D}/vacuum/approve", plan=plan).status_code == 400
    assert unchanged.parts.writer.annotated == []


def test_a_vacuum_is_requested(session: Session) -> None:
    assert session.post(f"{D}/vacuum/now").status_code == 303
    assert session.parts.writer.annotated == [("flights", {VACUUM_NOW: "2026-03-01T12:00:00Z"})]


@pytest.mark.parametrize("path", [f"{D}/restate", f"{D}/vacuum/approve", f"{D}/vacuum/now", f"{R}/plan-plan/apply"])
def test_no_form_of_another_site_changes_anything(unchanged: Session, path: str) -> None:
    assert unchanged.post(path, origin="https://evil.example", plan="d1", action="apply", batch="A").status_code == 403
    assert unchanged.post(path, key="", plan="d1", action="apply", batch="A").status_code == 403
    assert (unchanged.parts.writer.created, unchanged.parts.writer.annotated) == ([], [])
