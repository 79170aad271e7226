"""The erasure record: what it says and does not say, who signed it, and how long a store has to keep it."""

import hashlib
import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lethe.base.errors import InputError
from lethe.base.objects import LockMode, Retention, parse_retention
from lethe.contract.result import RequestResult
from lethe.contract.run import Manager, Provenance
from lethe.erasure.progress import OpenErasure
from lethe.erasure.record import (
    FILES_AT_MOST,
    Record,
    Signer,
    Statement,
    Verification,
    canonical,
    fault,
    load_public_key,
    load_signer,
    record,
)
from lethe.files.bounds import IdIndex
from lethe.ledger.tombstone import Erasure, PurgedFile

from tests.support.builders import FIELD, NOW, RUN

TABLE = {"name": "air.flights", "uuid": "u", "location": "s3://lake/t"}
RESULT = RequestResult(
    key="ns/erase/0", name="ns/erase", succeeded=True, operation="Erase", rows_erased=3, snapshot_id=4
)
CLAIM = OpenErasure(Erasure("ns/erase/0", FIELD + 1, NOW, 5, 5, NOW), RESULT, IdIndex(()), False, True, 4)
SEEN = Verification(RUN, NOW, 9, 3, ("b", "a"), {"HeadObject": 2}, True, True, 1)


def a_file(path: str, size: int = 10) -> PurgedFile:
    return PurgedFile(path, size, "data", ("ns/erase/0",))


def of(*files: PurgedFile, claim: OpenErasure = CLAIM) -> Record:
    return record(claim, TABLE, files, SEEN, (7, 8))


def test_it_records_what_was_erased_when_which_files_and_how() -> None:
    made = of(a_file("s3://lake/t/data/r/f", 10), a_file("s3://lake/t/data/r/g", 5))

    reported = json.loads(made.content)
    assert (reported["restatement"]["key"], reported["restatement"]["named-by"]) == ("ns/erase/0", "records")
    assert (reported["restatement"]["rows-erased"], reported["restatement"]["due-time"]) == (3, NOW.isoformat())
    assert (reported["purge"], reported["expired-snapshots"]) == (
        {"snapshot-id": 5, "seen-time": NOW.isoformat()},
        [7, 8],
    )
    assert reported["files"][1] == {"path": "s3://lake/t/data/r/g", "bytes": 5, "content": "data"}
    assert (reported["files-count"], reported["files-bytes"]) == (2, 15)
    assert reported["verified"]["storage-calls"] == {"HeadObject": 2}
    assert reported["verified"]["tags-and-branches"] == ["a", "b"]


def test_its_digest_and_that_of_its_files_are_those_of_the_bytes() -> None:
    """Whoever has the file can check both."""
    made = of(a_file("s3://lake/t/data/r/g", 5), a_file("s3://lake/t/data/r/f"))

    lines = b"s3://lake/t/data/r/f\t10\tdata\ns3://lake/t/data/r/g\t5\tdata\n"
    assert hashlib.sha256(made.content).hexdigest() == made.sha256
    assert json.loads(made.content)["files-sha256"] == hashlib.sha256(lines).hexdigest()
    assert made.name == f"{hashlib.sha256(b'ns/erase/0').hexdigest()[:16]}-{made.sha256[:16]}.json"


def test_folders_that_are_named_after_a_value_lose_it() -> None:
    made = of(a_file("s3://lake/t/data/r/name=Ada Lovelace/day=1/f"))

    assert json.loads(made.content)["files"][0]["path"] == "s3://lake/t/data/r/name=*/day=*/f"
    assert b"Lovelace" not in made.content


def test_of_very_many_files_the_first_are_listed_and_all_are_counted() -> None:
    made = of(*(a_file(f"f{n:06}") for n in range(FILES_AT_MOST + 1)))

    reported = json.loads(made.content)
    assert (len(reported["files"]), reported["files-count"]) == (FILES_AT_MOST, FILES_AT_MOST + 1)


def test_of_very_many_objects_that_were_not_read_the_first_are_named_and_all_are_counted() -> None:
    objects = [f"s3://lake/t/{n:06}: an object of the buffer" for n in range(FILES_AT_MOST + 2)]

    def named(*uncovered: str) -> list[str]:
        made = record(CLAIM, TABLE, (), replace(SEEN, uncovered=uncovered), ())
        return [n for n in json.loads(made.content)["not-covered"] if n.startswith("s3:") or "more objects" in n]

    digest = hashlib.sha256("".join(f"{o}\n" for o in objects).encode()).hexdigest()
    assert named(*reversed(objects[:3])) == objects[:3]
    assert named(*objects)[:-1] == objects[:FILES_AT_MOST]
    assert named(*objects)[-1].startswith("2 more objects; ")
    assert named(*objects)[-1].endswith(digest)


def test_it_records_the_requester_and_the_reason_if_the_object_has_them() -> None:
    asked = Provenance(
        reason="right to erasure",
        ticket="GDPR-17",
        uid="u-1",
        created_time=NOW,
        managers=(Manager(name="kubectl-client-side-apply", operation="Update", time=NOW),),
        marks={"lethe.dev/requested-by": "privacy-team"},
    )
    result = RESULT.model_copy(update={"provenance": asked, "values_digest": "k:1"})

    reported = json.loads(of(claim=replace(CLAIM, result=result)).content)["request"]

    assert reported == {
        "name": "ns/erase",
        "uid": "u-1",
        "created-time": NOW.isoformat(),
        "reason": "right to erasure",
        "ticket": "GDPR-17",
        "batch-ids-digest": None,
        "values-digest": "k:1",
        "managers": [{"name": "kubectl-client-side-apply", "operation": "Update", "time": NOW.isoformat()}],
        "marks": {"lethe.dev/requested-by": "privacy-team"},
    }


def test_batches_are_recorded_as_a_keyed_digest() -> None:
    """Their ids may name people, and are in the ledger."""
    reported = json.loads(record(CLAIM, TABLE, (), SEEN, (), "k:2").content)["request"]

    assert (reported["batch-ids-digest"], reported["ticket"], reported["managers"]) == ("k:2", None, [])


def test_it_has_one_form_for_one_content() -> None:
    """So that nobody can write the same thing with another hash, nor another thing that readers take for it."""
    made = of(a_file("s3://lake/t/data/r/f"))

    reported = json.loads(made.content)
    assert canonical(dict(reversed(reported.items()))) == made.content
    assert (made.content.count(b"\n"), made.content.endswith(b"}\n"), made.content.isascii()) == (1, True, True)
    assert list(reported) == sorted(reported)


SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(b"1" * 32))
OTHER = Signer(Ed25519PrivateKey.from_private_bytes(b"2" * 32))
STATEMENT = Statement("u", "ns/erase/0", "ab" * 32, NOW)
FILE = SIGNER.file(STATEMENT)


def test_what_was_signed_verifies_with_the_key_and_is_the_same_each_time() -> None:
    assert fault(FILE, STATEMENT, [OTHER.public, SIGNER.public]) is None
    assert SIGNER.file(STATEMENT) == FILE
    assert json.loads(FILE)["key-id"] == SIGNER.public.id != OTHER.public.id


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"table_uuid": "v"}, "table-uuid"),
        ({"restatement": "ns/other/0"}, "restatement"),
        ({"record_sha256": "cd" * 32}, "record-sha256"),
        ({"verified_time": NOW + timedelta(seconds=1)}, "verified-time"),
    ],
)
def test_a_signature_of_something_else_is_none(change: dict[str, Any], named: str) -> None:
    expected = replace(STATEMENT, **change)

    assert named in (fault(FILE, expected, [SIGNER.public]) or "")
    # Nor does it help to write the expected statement over the one that was signed.
    forged = canonical({**json.loads(FILE), "statement": expected.document})
    assert fault(forged, expected, [SIGNER.public]) == "the key that it names did not sign this statement"


def test_a_signature_by_another_key_is_none() -> None:
    assert "not one of those given" in (fault(OTHER.file(STATEMENT), STATEMENT, [SIGNER.public]) or "")
    renamed = canonical({**json.loads(OTHER.file(STATEMENT)), "key-id": SIGNER.public.id})
    assert fault(renamed, STATEMENT, [SIGNER.public]) == "the key that it names did not sign this statement"


@pytest.mark.parametrize(
    "content", [b"", b"{}", b"[]", b'{"statement": 1, "key-id": 2, "signature": "*"}', b"\xff", b"[" * 100_000]
)
def test_what_is_no_signature_file_is_named_so(content: bytes) -> None:
    assert fault(content, STATEMENT, [SIGNER.public]) == "it is not a readable signature file"


def pem(key: Any) -> tuple[bytes, bytes]:
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    private = key.private_bytes(serialization.Encoding.PEM, form, plain)
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    return private, key.public_key().public_bytes(serialization.Encoding.PEM, info)


def test_keys_are_read_from_pem_and_others_are_refused_without_a_word_of_them() -> None:
    private, public = pem(Ed25519PrivateKey.from_private_bytes(b"1" * 32))
    assert (load_signer(private, "k").public.id, load_public_key(public, "p").id) == (SIGNER.public.id,) * 2

    ecdsa, ecdsa_public = pem(generate_private_key(SECP256R1()))
    for content in (b"secret", ecdsa, public):
        with pytest.raises(InputError, match="ed25519 private key") as refused:
            load_signer(content, "key.pem")
        assert "secret" not in str(refused.value)
    for content in (b"secret", ecdsa_public, private):
        with pytest.raises(InputError, match="ed25519 public key"):
            load_public_key(content, "key.pub")
    assert repr(SIGNER) == f"Signer({SIGNER.public.id})"


def test_a_retention_is_a_mode_and_days() -> None:
    kept = parse_retention("COMPLIANCE:3650")

    assert kept == Retention(LockMode.COMPLIANCE, 3650)
    assert (str(kept), kept.until(NOW)) == ("COMPLIANCE:3650", NOW + timedelta(days=3650))
    assert parse_retention("") is None


@pytest.mark.parametrize("text", ["compliance:1", "COMPLIANCE", "COMPLIANCE:", "GOVERNANCE:0", "GOVERNANCE:-1", ":7"])
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(InputError) as refused:
        parse_retention(text)

    assert (refused.value.reason, text in refused.value.message) == ("InvalidRetention", True)
