"""Subject requests: what the operator creates, and the record that it writes beside each table. It may die at any request."""

import json
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lethe.contract.restatement import Requester
from lethe.erasure.record import Signer, fault
from lethe.erasure.request_record import RequestStatement
from lethe.kube import DATASETS, EVENTS, RESTATEMENTS, SECRETS, Document, RequestRefused, ResourceKind
from lethe.search.strays import is_own
from lethe_operator.cluster.schedule import Key
from lethe_operator.request.reconcile import EraseRights
from lethe_operator.resources.restatement import parse_restatement
from lethe_operator.settings import Settings

from tests.support.builders import NOW
from tests.support.documents import dataset_spec, resource
from tests.support.fake_cluster import Client, FakeCluster, an_operator
from tests.support.steps import Killed, die

pytestmark = pytest.mark.usefixtures("bare")
SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(b"1" * 32))
NAME = "erase-12"
REQUEST = Key("Restatement", "ns", NAME)
SECRET = {"metadata": {"name": "erase-12", "namespace": "ns"}}


class Requests:
    """A request for two Datasets and the cluster that it is in. Runs are stood in for by statuses."""

    def __init__(self, home: Path, redact: Any = None, **subject: Any) -> None:
        self.home = home
        self.cluster = FakeCluster((SECRETS, dict(SECRET)))
        for name in ("bookings", "trips"):
            self.add_dataset(name)
        asked = {"identity": "customer", "valuesFrom": {"secretKeyRef": {"name": "erase-12", "key": "v"}}, **subject}
        self.result = {"rowsErased": 2} if redact is None else {"rowsRedacted": 2}
        spec = {"operation": "Erase", "datasetSelector": {}, "subject": asked, "ticket": "T-12"}
        spec |= {"operation": "Redact", "redact": redact} if redact is not None else {}
        self.cluster.create(RESTATEMENTS, "ns", resource("Restatement", NAME, spec, namespace="ns", generation=1))

    def add_dataset(self, name: str) -> None:
        table = {"catalog": "lite", "name": f"air.{name}"}
        spec = dataset_spec(table=table, identities=[{"name": "customer", "column": "email"}])
        body = resource("Dataset", name, spec, namespace="ns", generation=1)
        self.cluster.create(DATASETS, "ns", {**body, "status": {"table": {"location": self.location(name)}}})

    def location(self, dataset: str) -> str:
        return f"file://{self.home}/{dataset}"

    def reconcile(self, client: Client | None = None, key: Key = REQUEST) -> None:
        an_operator(client or self.cluster, settings=Settings(signer=SIGNER))(key)  # type: ignore[arg-type]

    def status(self, name: str = NAME) -> Document:
        return dict(self.cluster.get(RESTATEMENTS, "ns", name).get("status") or {})

    def children(self) -> list[Document]:
        found = self.cluster.list(RESTATEMENTS, "ns")
        return sorted((r for r in found if "datasetRef" in r["spec"]), key=lambda r: str(r["metadata"]["name"]))

    def verify(self) -> None:
        """All Restatements of Datasets become verified, each with a record."""
        for child in self.children():
            dataset = child["spec"]["datasetRef"]["name"]
            erasure = {
                "verifiedTime": NOW.isoformat(),
                "record": f"{self.location(dataset)}/_erasures/own.json",
                "recordSha256": "00",
                "vacuumSnapshotId": 7,
                "signature": "k:s",
            }
            conditions = [
                {"type": t, "status": "True", "reason": "R", "lastTransitionTime": NOW.isoformat()}
                for t in ("Ready", "Succeeded", "Erased")
            ]
            status = {
                "conditions": conditions,
                "observedGeneration": 1,
                "erasure": erasure,
                "result": self.result,
            }
            self.cluster.patch(RESTATEMENTS, "ns", child["metadata"]["name"], {"status": status}, "status")

    def records(self) -> dict[str, bytes]:
        """The files beside the tables, by the table's name and the file's."""
        return {f"{p.parts[-3]}/{p.name}": p.read_bytes() for p in self.home.glob("*/_erasures/*")}

    def erased(self) -> str:
        return next((c["status"] for c in self.status()["conditions"] if c["type"] == "Erased"), "")


@pytest.fixture
def asked(tmp_path: Path) -> Requests:
    return Requests(tmp_path)


def test_a_request_becomes_restatements_and_ends_with_one_record(asked: Requests) -> None:
    asked.reconcile()
    assert [c["metadata"]["name"] for c in asked.children()] == ["erase-12-bookings", "erase-12-trips"]
    assert asked.status()["subject"]["selected"] == 2

    asked.verify()
    asked.reconcile()
    status = asked.status()
    assert asked.erased() == "True"
    assert status["subject"] | {"datasets": 0} == {
        "selected": 2,
        "hidden": 2,
        "purged": 2,
        "verified": 2,
        "blocked": 0,
        "withoutIdentity": 0,
        "datasets": 0,
    }
    files = asked.records()
    names = {name.partition("/")[2] for name in files}
    assert len(files) == 4, "the record and its signature beside both tables"
    assert len(names) == 2
    record = next(content for name, content in files.items() if name.endswith(".json"))
    document = json.loads(record)
    assert [d["table"] for d in document["datasets"]] == ["lite.air.bookings", "lite.air.trips"]
    assert document["request"]["ticket"] == "T-12"
    key = parse_restatement(asked.cluster.get(RESTATEMENTS, "ns", NAME)).key
    statement = RequestStatement(key, status["erasure"]["recordSha256"], NOW)
    for name, content in files.items():
        if name.endswith(".sig"):
            assert fault(content, statement, [SIGNER.public]) is None
        assert is_own(f"_erasures/{name.partition('/')[2]}", content), "a check of the storage knows the file"


def test_the_record_of_a_redact_names_its_columns_and_the_key_of_its_hashes(tmp_path: Path) -> None:
    key = {"secretKeyRef": {"name": "erase-hash", "key": "k"}}
    columns = [{"column": "email", "method": "KeyedHash"}, {"column": "seat", "method": "Constant", "value": "secret"}]
    asked = Requests(tmp_path, redact={"columns": columns, "hashKeyFrom": key})
    asked.reconcile()
    asked.verify()
    asked.reconcile()

    assert asked.erased() == "True"
    content = next(content for name, content in asked.records().items() if name.endswith(".json"))
    record = json.loads(content)
    named = [{"column": "email", "method": "KeyedHash"}, {"column": "seat", "method": "Constant"}]
    assert record["request"]["redaction"] == {"columns": named, "hash-key": "erase-hash/k"}
    assert [d["rows-redacted"] for d in record["datasets"]] == [2, 2]
    assert b"secret" not in content
    said = next(c["message"] for c in asked.status()["conditions"] if c["type"] == "Erased")
    assert "no file in the storage contains the old values" in said


def test_the_secret_is_kept_unless_its_deletion_is_asked_for(tmp_path: Path) -> None:
    for delete in (False, True):
        asked = Requests(tmp_path / str(delete), deleteValues=delete)
        asked.reconcile()
        asked.verify()
        assert asked.cluster.list(SECRETS, "ns")
        asked.reconcile()
        assert bool(asked.cluster.list(SECRETS, "ns")) is not delete


def test_a_secret_that_cannot_be_deleted_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = Requests(tmp_path, deleteValues=True)
    asked.reconcile()
    asked.verify()

    def refuse(*_args: Any, **_more: Any) -> None:
        raise RequestRefused(403, "Forbidden", "no")

    monkeypatch.setattr(asked.cluster, "delete", refuse)
    asked.reconcile()
    assert asked.erased() == "True"
    assert "ValuesNotDeleted" in {e["reason"] for e in asked.cluster.list(EVENTS, "ns")}


def test_a_secret_that_another_request_needs_is_kept(tmp_path: Path) -> None:
    """Its Restatements may not have read the values yet. The last request deletes the Secret."""
    asked = Requests(tmp_path, deleteValues=True)
    spec = asked.cluster.get(RESTATEMENTS, "ns", NAME)["spec"]
    other = resource("Restatement", "erase-13", spec, namespace="ns", generation=1)
    asked.cluster.create(RESTATEMENTS, "ns", other)
    asked.reconcile()
    asked.verify()

    asked.reconcile()

    assert (asked.erased(), len(asked.cluster.list(SECRETS, "ns"))) == ("True", 1)
    (told,) = (e for e in asked.cluster.list(EVENTS, "ns") if e["reason"] == "ValuesNotDeleted")
    assert "Restatement erase-13" in told["note"]

    for _ in range(2):
        asked.reconcile(key=Key("Restatement", "ns", "erase-13"))
        asked.verify()
    assert not asked.cluster.list(SECRETS, "ns")


def test_a_dataset_joins_while_the_request_is_open_and_not_afterwards(asked: Requests) -> None:
    asked.reconcile()
    asked.add_dataset("cards")
    asked.reconcile()
    assert len(asked.children()) == 3
    asked.verify()
    asked.reconcile()
    asked.add_dataset("late")
    asked.reconcile()
    assert len(asked.children()) == 3
    assert asked.status()["subject"]["selected"] == 3


def test_a_record_at_another_place_is_not_followed(asked: Requests) -> None:
    asked.reconcile()
    asked.verify()
    elsewhere = {"status": {"erasure": {"record": f"file://{asked.home}/elsewhere/r.json"}}}
    asked.cluster.patch(RESTATEMENTS, "ns", "erase-12-trips", elsewhere, "status")
    asked.reconcile()
    assert (asked.erased(), asked.records()) == ("Unknown", {})
    assert "RecordNotSigned" in {e["reason"] for e in asked.cluster.list(EVENTS, "ns")}


def test_a_request_whose_record_cannot_be_written_says_why_and_once(asked: Requests) -> None:
    """A Dataset is deleted after the erasure in its table was verified, and before the last of the others is."""
    asked.reconcile()
    asked.verify()
    asked.cluster.delete(DATASETS, "ns", "trips")
    for _ in range(3):
        asked.reconcile()

    (erased,) = [c for c in asked.status()["conditions"] if c["type"] == "Erased"]
    assert (erased["status"], erased["reason"]) == ("Unknown", "RecordNotSigned")
    assert "Dataset trips does not exist any more" in erased["message"]
    assert [e["type"] for e in asked.cluster.list(EVENTS, "ns") if e["reason"] == "RecordNotSigned"] == ["Warning"]

    asked.cluster.delete(RESTATEMENTS, "ns", "erase-12-trips")
    asked.reconcile()
    assert asked.erased() == "True"


def test_an_operator_killed_at_any_request_leaves_the_rest_to_its_successor(tmp_path: Path) -> None:
    def ended(home: Path, killed_at: int) -> tuple[Requests, int]:
        asked, killed = Requests(home, deleteValues=True), 0
        for _ in range(2):
            client = Client(asked.cluster, after={killed_at: die})
            try:
                asked.reconcile(client)
            except Killed:
                killed += 1
                asked.reconcile()
            asked.verify()
        asked.reconcile()
        return asked, killed

    whole, _ = ended(tmp_path / "whole", -1)
    kills = 0
    for number in range(10):
        asked, killed = ended(tmp_path / str(number), number)
        kills += killed
        assert len(asked.children()) == 2
        assert asked.erased() == "True"
        assert not asked.cluster.list(SECRETS, "ns")
        assert len(asked.records()) == len(whole.records()) == 4, f"killed after request {number}"
    assert kills >= 8, "each request of both reconciles"


class Reviews:
    """Lets `ana` erase from `bookings` only."""

    def review(self, _kind: ResourceKind, namespace: str, spec: Document) -> Document:
        assert (namespace, spec["groups"]) == ("ns", ["privacy"])
        return {"allowed": (spec["user"], spec["resourceAttributes"]["name"]) == ("ana", "bookings")}


@pytest.mark.parametrize("annotated", [True, False])
def test_only_datasets_from_which_the_requester_may_erase_get_a_restatement(asked: Requests, annotated: bool) -> None:
    """Without annotations it is from none. The others are shown, and so is the request."""
    annotations = Requester("ana", ("privacy",)).annotations if annotated else {}
    asked.cluster.patch(RESTATEMENTS, "ns", NAME, {"metadata": {"annotations": annotations}})

    an_operator(asked.cluster, settings=Settings(signer=SIGNER), rights=EraseRights(Reviews()))(REQUEST)

    assert [c["spec"]["datasetRef"]["name"] for c in asked.children()] == (["bookings"] if annotated else [])
    subject = asked.status()["subject"]
    blocked = {d["name"]: d["message"] for d in subject["datasets"] if d["reason"] == "RequesterNotAllowed"}
    assert set(blocked) == ({"trips"} if annotated else {"bookings", "trips"})
    assert "verb erase on datasets.lethe.dev trips" in blocked["trips"]
    assert subject["blocked"] == len(blocked)
