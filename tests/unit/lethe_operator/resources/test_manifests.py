"""The resources that the commands create."""

import json
from datetime import UTC, datetime

import pytest
from click.testing import CliRunner
from lethe.cli.main import cli
from lethe_operator.resources import manifests
from lethe_operator.resources.manifests import Note
from lethe_operator.resources.restatement import parse_restatement
from lethe_operator.resources.vacuum_policy import parse_vacuum_now

LONGEST = "\U0001f600" * 256  # 1,024 bytes


def test_the_same_request_has_the_same_name_and_another_one_has_not() -> None:
    first, again = (manifests.revert("flights", ["a"], Note()) for _ in range(2))
    other = manifests.revert("flights", ["b"], Note())

    assert first == again
    assert first["metadata"]["name"] != other["metadata"]["name"]


def test_the_operator_can_read_each_of_them() -> None:
    note = Note("n", "why", "T-1", 60)
    for document in (
        manifests.revert("flights", ["a"], note),
        manifests.erase_batches("flights", ["a"], note),
        manifests.erase_records("flights", "tail", "erase-1", "values", note),
        manifests.redact_batches("flights", ["a"], manifests.redaction(["email=null"]), note),
        manifests.redact_records("flights", "id", "erase-1", "values", manifests.redaction(["email=hash:s/k"]), note),
        manifests.undo("flights", "revert-a", note),
        manifests.replay("flights", ["a"], "b", "s3://lake/new", ["id"], note),
    ):
        spec = parse_restatement(document).spec

        assert (spec.reason, spec.ticket, spec.evict_by_seconds) == ("why", "T-1", 60)
        assert spec.dataset == "flights"


def test_a_redaction_is_written_as_texts() -> None:
    found = manifests.redaction(
        ["a.b=null", "c=constant:x=y:z", "d=constant:", "e=hash:erase-key/k/1", "f=hash:erase-key/k/1"]
    )

    assert found == {
        "columns": [
            {"column": "a.b", "method": "SetNull"},
            {"column": "c", "method": "Constant", "value": "x=y:z"},
            {"column": "d", "method": "Constant", "value": ""},
            {"column": "e", "method": "KeyedHash"},
            {"column": "f", "method": "KeyedHash"},
        ],
        "hashKeyFrom": {"secretKeyRef": {"name": "erase-key", "key": "k/1"}},
    }


@pytest.mark.parametrize(
    "texts", [[], ["a"], ["a="], ["=null"], ["a=null:x"], ["a=constant"], ["a=hash:s"], ["a=hash:s/k", "b=hash:s/l"]]
)
def test_another_text_is_no_redaction(texts: list[str]) -> None:
    with pytest.raises(ValueError, match=r"COLUMN=null|the same key"):
        manifests.redaction(texts)


def test_batches_of_a_requested_vacuum_are_encoded() -> None:
    value = manifests.vacuum_now(datetime(2026, 3, 1, tzinfo=UTC), ["a", "b,c d", LONGEST])

    assert parse_vacuum_now(value).batch_ids == ("a", "b,c d", LONGEST)


def test_the_longest_id_of_a_batch_is_that_of_the_command() -> None:
    reverted = parse_restatement(manifests.revert("flights", [LONGEST], Note()))

    assert reverted.spec.batch_ids == (LONGEST,)
    assert len(reverted.meta.name) < 63


@pytest.mark.parametrize("verb", [["erase"], ["redact", "--set", "tail=null"]], ids=["erase", "redact"])
def test_a_manifest_for_git_never_holds_values(verb: list[str]) -> None:
    ended = CliRunner().invoke(
        cli, [*verb, "flights", "--column", "tail", "--values", "-", "-o", "yaml"], input="N12345\n"
    )

    assert ended.exit_code == 2
    assert "--values-from" in ended.output
    assert "N12345" not in ended.output


def test_the_command_prints_the_manifest_of_a_redact() -> None:
    options = ["--values-from", "erase-1/values", "--column", "id", "--set", "email=hash:erase-key/key", "-o", "json"]

    printed = CliRunner().invoke(cli, ["redact", "flights", *options])

    assert printed.exit_code == 0, printed.output
    wanted = manifests.redact_records(
        "flights", "id", "erase-1", "values", manifests.redaction(["email=hash:erase-key/key"]), Note()
    )
    assert json.loads(printed.output) == wanted


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["A", "--set", "email"], "--set: 'email' is not of the form COLUMN=null"),
        (["--set", "email=null"], "Name batches, or a --column"),
        (["A", "--column", "id", "--set", "email=null"], "Name batches, or a --column"),
        (["--column", "id", "--set", "email=null"], "--column needs one of --values and --values-from"),
        (["A"], "Missing option '--set'"),
    ],
)
def test_a_redact_that_is_not_complete_says_what_is_missing(options: list[str], text: str) -> None:
    ended = CliRunner().invoke(cli, ["redact", "flights", *options])

    assert ended.exit_code == 2
    assert text in ended.output
