"""What a report contains of resources and logs, and what it never contains."""

import json
from typing import Any

import pytest
from lethe_kubectl.cleaning import KEPT, REMOVED, cleaned_event, cleaned_pod, cleaned_resource, cleaned_text

from tests.unit.lethe_operator.guards.test_named_resources import POD_TEMPLATE, all_texts

LEFT_OUT = {
    "dataset: checks.[].condition",
    "dataset: checks.[].pattern.matches",
    "dataset: holds.[].filter",
    "dataset: holds.[].reason",
    "dataset: source.kafka.schema",
    "restatement: datasetSelector.matchExpressions.[].values.[]",
    "restatement: reason",
    "restatement: redact.columns.[].value",
    "restatement: redact.hashKeyFrom.secretKeyRef.key",
    "restatement: rows.anyOf.[].valuesFrom.secretKeyRef.key",
    "restatement: rows.valuesFrom.secretKeyRef.key",
    "restatement: subject.anyOf.[].valuesFrom.secretKeyRef.key",
    "restatement: subject.valuesFrom.secretKeyRef.key",
    "restatement: ticket",
    "vacuumpolicy: datasetSelector.matchExpressions.[].values.[]",
}


def test_each_text_of_a_spec_was_reviewed() -> None:
    """A new field is left out of reports. Add it here, or to `KEPT` if no person or secret can be in it."""
    kept = {f"{kind.lower()}: {path}" for kind, paths in KEPT.items() for path in paths}

    assert {name for name in all_texts() if not name.startswith(POD_TEMPLATE)} == LEFT_OUT | kept
    assert LEFT_OUT.isdisjoint(kept)


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("sqlalchemy: postgresql://lethe:Gu3ssMe@db:5432/lake refused", "Gu3ssMe"),
        ("GET https://s3/lake/x?X-Amz-Signature=0a1b2c3d4e5f&X-Amz-Expires=60 403", "0a1b2c3d4e5f"),
        ("s3.secret-access-key=abc/def+ghi was not accepted", "abc/def+ghi"),
        ('{"s3.secret-access-key": "two words"}', "two words"),
        ("password: hunter2, retrying", "hunter2"),
        ("Authorization: Bearer abcdef.ghijkl", "abcdef"),
        ("token eyJhbGciOiJSUzI1NiJ9.eyJzdWIiOiJhIn0.c2ln rejected", "eyJzdWIiOiJhIn0"),
        ("credentials AKIAIOSFODNN7EXAMPLE", "AKIAIOSFODNN7EXAMPLE"),
        ("key wJalrXUtnFEMIxK7MDENGbPxRfiCYEXAMPLEKEY1 used", "wJalrXUtnFEMIxK7MDENGbPxRfiCYEXAMPLEKEY1"),
        ("-----BEGIN PRIVATE KEY-----\nMIIEvQ\nIBADAN\n-----END PRIVATE KEY-----\nnext", "IBADAN"),
        ("no row for ada.lovelace+test@mail.example.org here", "ada.lovelace"),
        ("path s3://lake/by/ada%40example.org/x", "ada%40example.org"),
        ("call +49 (170) 123-45 67", "123-45"),
        ("the catalog answered: s3cr3t", "s3cr3t"),
    ],
)
def test_a_text_loses_credentials_and_what_looks_like_a_person(text: str, secret: str) -> None:
    assert secret not in cleaned_text(text, ["s3cr3t"])


@pytest.mark.parametrize(
    "text",
    [
        "Restatement default/fix-1: batch '2026-11-28.UA' was already replaced by 'ua-2'",
        "s3://lake/warehouse/air/flights/data/00000-7-3f2a91c0-5e41-4d58-9e13-6e7f4a1b2c3d-0.parquet",
        "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
        'lethe_runs_total{kind="Vacuum",namespace="default"} 7',
        "2026-11-28T22:00:00Z 12 of 40 tasks, 3 executors, snapshot 8642949070972100074",
        "org.apache.iceberg.exceptions.CommitFailedException: Requirement failed: branch main has changed",
    ],
)
def test_a_text_that_helps_to_find_a_problem_stays(text: str) -> None:
    assert cleaned_text(text) == text


@pytest.mark.parametrize("piece", ["A", "ab.-", "a=b/", "12 ", "x@", "a:"])
def test_a_long_word_is_cleaned_in_time_in_proportion_to_its_length(piece: str) -> None:
    """A log may have a line of megabytes. In time of the square of its length, this would take an hour."""
    text = piece * (400_000 // len(piece))

    assert cleaned_text(f"{text} token=abc123") == f"{text} token=***"


def test_of_a_spec_only_reviewed_texts_numbers_and_enums_stay() -> None:
    spec: dict[str, Any] = {
        "datasetRef": {"name": "people"},
        "operation": "Redact",
        "rows": {"column": "email", "valuesFrom": {"secretKeyRef": {"name": "erase-1", "key": "Lovelace"}}},
        "redact": {"columns": [{"column": "country", "method": "Constant", "value": "Atlantis"}]},
        "reason": "Lovelace asked",
        "ticket": "case of Lovelace",
        "later": {"field": "Lovelace"},
        "evictBySeconds": 60,
    }
    annotations = {
        "lethe.dev/requested-by": "Lovelace",
        "kubectl.kubernetes.io/last-applied-configuration": "{Lovelace}",
    }
    document = {"kind": "Restatement", "metadata": {"name": "r", "annotations": annotations}, "spec": spec}

    cleaned = cleaned_resource(document)

    assert cleaned["spec"] == {
        **spec,
        "rows": {"column": "email", "valuesFrom": {"secretKeyRef": {"name": "erase-1", "key": REMOVED}}},
        "redact": {"columns": [{"column": "country", "method": "Constant", "value": REMOVED}]},
        "reason": REMOVED,
        "ticket": REMOVED,
        "later": {"field": REMOVED},
    }
    assert "Lovelace" not in json.dumps(cleaned)


def test_values_of_checks_are_left_out_also_if_they_are_numbers() -> None:
    checks = [
        {"name": "age", "range": {"column": "age", "min": 36, "max": 37}},
        {"name": "c", "values": {"column": "c", "allowed": [36]}},
    ]
    document = {"kind": "Dataset", "metadata": {"name": "d"}, "spec": {"checks": checks}}

    assert cleaned_resource(document)["spec"]["checks"] == [
        {"name": "age", "range": {"column": "age", "min": REMOVED, "max": REMOVED}},
        {"name": "c", "values": {"column": "c", "allowed": REMOVED}},
    ]


def test_of_a_pod_its_images_and_states_stay_and_of_an_event_its_message() -> None:
    container = {"name": "driver", "image": "lethe:1", "env": [{"name": "A", "value": "planted"}], "args": ["planted"]}
    pod = {
        "metadata": {"name": "p"},
        "spec": {"containers": [container]},
        "status": {"phase": "Failed", "podIP": "10.0.0.7"},
    }
    event = {"note": "for ada@example.org", "reason": "Failed", "regarding": {"kind": "Pod", "name": "p"}}

    cleaned = cleaned_pod(pod)

    assert cleaned["spec"] == {"containers": [{"name": "driver", "image": "lethe:1"}]}
    assert cleaned["status"] == {"phase": "Failed"}
    assert cleaned_event(event)["message"] == "for (removed e-mail)"
