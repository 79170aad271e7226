"""The erasure record says what was erased and how that was seen, and tells nobody whose rows they were."""

import hashlib
import json
from dataclasses import replace

from lethe.contract.result import RequestResult
from lethe.contract.run import Manager, Provenance
from lethe.erasure.progress import OpenErasure
from lethe.erasure.record import FILES_AT_MOST, Record, Verification, canonical, record
from lethe.files.bounds import IdIndex
from lethe.ledger.erasure import Erasure, PurgedFile

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


def test_another_content_has_another_name() -> None:
    """A record is never written over."""
    later = replace(CLAIM, erasure=replace(CLAIM.erasure, purged_by=6))

    assert of().name != of(claim=later).name


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
