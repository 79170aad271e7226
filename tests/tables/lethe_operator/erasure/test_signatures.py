"""The operator signs the record of an erasure before it shows the erasure, and only if the record is what the ledger says."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lethe.base.errors import InvalidSettings
from lethe.erasure.progress import OpenErasure
from lethe.erasure.record import Record, Signer, Statement, Verification, fault, load_signer, record
from lethe.files.bounds import IdIndex
from lethe.kube import EVENTS, RESTATEMENTS
from lethe.restatement.plan import recalled
from lethe_operator.erasure import signatures
from lethe_operator.settings import Settings, with_files

from tests.support.builders import NOW, RUN
from tests.support.erasing import ASKED, KEY, OPEN, ErasingLake
from tests.support.fake_cluster import an_operator
from tests.support.small_lake import FLIGHTS

SIGNER = Signer(Ed25519PrivateKey.from_private_bytes(b"1" * 32))
NEW = Signer(Ed25519PrivateKey.from_private_bytes(b"2" * 32))


@pytest.fixture
def lake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ErasingLake:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    return ErasingLake.make(tmp_path)


def a_record(lake: ErasingLake, key: str = KEY, uuid: str | None = None) -> Record:
    seen = Verification(RUN, NOW, 9, 3, (), {}, True, True, 0)
    claim = OpenErasure(replace(OPEN, restatement=key), recalled(ASKED), IdIndex(()), False, False, 4)
    table = {
        "name": "air.flights",
        "uuid": uuid or str(lake.table.metadata.table_uuid),
        "location": lake.table.location(),
    }
    return record(claim, table, (), seen, ())


def close(lake: ErasingLake, made: Record, folder: str = "_erasures") -> Path:
    """A run has verified the erasure. Returns: where its record lies."""
    uri = f"{lake.table.location()}/{folder}/{made.name}"
    path = Path(uri.removeprefix("file://"))
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(made.content)
    lake.verified(uri, made.sha256)
    return path


def reconcile(lake: ErasingLake, signer: Signer | None = SIGNER, *former: Signer) -> None:
    settings = Settings(signer=signer, former_keys=tuple(f.public for f in former))
    an_operator(lake.cluster, settings=settings)(FLIGHTS)


def test_the_signature_is_in_the_status_and_beside_the_record(lake: ErasingLake) -> None:
    path = close(lake, a_record(lake))

    reconcile(lake)

    erasure = lake.erase_status()["erasure"]
    statement = Statement(str(lake.table.metadata.table_uuid), KEY, erasure["recordSha256"], NOW)
    assert lake.erased() == ("True", "Erased")
    assert erasure["signature"] == f"{SIGNER.public.id}:{SIGNER.sign(statement)}"
    assert fault(Path(f"{path}.sig").read_bytes(), statement, [SIGNER.public]) is None


def test_without_a_key_nothing_is_signed(lake: ErasingLake) -> None:
    path = close(lake, a_record(lake))

    reconcile(lake, signer=None)

    assert lake.erased() == ("True", "Erased")
    assert ("signature" in lake.erase_status()["erasure"], Path(f"{path}.sig").exists()) == (False, False)


def test_a_record_that_an_earlier_key_has_signed_stays_valid_after_the_key_changes(lake: ErasingLake) -> None:
    path = close(lake, a_record(lake))
    reconcile(lake)
    shown, file = lake.erase_status()["erasure"], Path(f"{path}.sig").read_bytes()

    reconcile(lake, NEW)
    kept = lake.erase_status()["erasure"]
    lake.create_again()
    reconcile(lake, NEW, SIGNER)

    assert kept == shown == lake.erase_status()["erasure"]
    assert lake.erased() == ("True", "Erased")
    assert Path(f"{path}.sig").read_bytes() == file


def test_a_record_that_an_unknown_key_has_signed_is_shown_with_what_to_do_until_the_key_is_there(
    lake: ErasingLake,
) -> None:
    close(lake, a_record(lake))
    reconcile(lake)
    lake.create_again()

    for _ in range(2):
        with pytest.raises(Exception, match="earlier key"):
            reconcile(lake, NEW)
    shown = lake.erase_status()
    reconcile(lake, NEW, SIGNER)

    (erased,) = (c for c in shown["conditions"] if c["type"] == "Erased")
    assert (shown["phase"], erased["status"], erased["reason"]) == ("Succeeded", "False", "RecordNotSigned")
    assert repr(SIGNER.public.id) in erased["message"]
    assert lake.erased() == ("True", "Erased")


def test_of_two_operators_with_different_keys_the_second_shows_the_signature_of_the_first(
    lake: ErasingLake, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a rolling update after a change of the key: both see no signature, and one writes it first."""
    path = close(lake, a_record(lake))
    statement = Statement(str(lake.table.metadata.table_uuid), KEY, a_record(lake).sha256, NOW)
    real = signatures.write_once

    def late(uri: str, *rest: Any) -> None:
        Path(f"{path}.sig").write_bytes(SIGNER.file(statement))
        real(uri, *rest)

    monkeypatch.setattr(signatures, "write_once", late)
    reconcile(lake, NEW, SIGNER)

    assert lake.erase_status()["erasure"]["signature"] == f"{SIGNER.public.id}:{SIGNER.sign(statement)}"


def changed(path: Path) -> None:
    path.write_bytes(path.read_bytes().replace(b'"rows-deleted":', b'"rows-deleted" :'))


@pytest.mark.parametrize(
    ("made", "then", "why"),
    [
        (lambda lake: close(lake, a_record(lake)), changed, "SHA-256"),
        (lambda lake: close(lake, a_record(lake)), Path.unlink, "which does not exist"),
        (lambda lake: close(lake, a_record(lake, key="ns/other/1")), None, "another erasure"),
        (lambda lake: close(lake, a_record(lake, uuid="another-table")), None, "another erasure"),
        (lambda lake: close(lake, a_record(lake), folder="data"), None, "expected a record in"),
    ],
    ids=["changed", "lost", "of another erasure", "of another table", "elsewhere"],
)
def test_a_record_that_differs_from_the_ledger_is_not_signed_and_its_erasure_is_not_shown(
    lake: ErasingLake, made: Callable[[ErasingLake], Path], then: Callable[[Path], object] | None, why: str
) -> None:
    path = made(lake)
    if then is not None:
        then(path)

    with pytest.raises(Exception, match=why):
        reconcile(lake)

    assert "erasure" not in lake.erase_status()
    assert lake.erase_status()["phase"] == "Succeeded"
    assert lake.erased() == ("False", "RecordNotSigned")
    assert not [e for e in lake.cluster.list(EVENTS, "ns") if e["reason"] == "Erased"]
    assert not Path(f"{path}.sig").exists()
    (event,) = [e for e in lake.cluster.list(EVENTS, "ns") if e["reason"] == "RecordNotSigned"]
    assert why in event.get("note", event.get("message", ""))


def test_a_restatement_whose_record_is_not_signed_is_not_deleted(lake: ErasingLake) -> None:
    """Its time to live would begin with an end that was not shown."""
    spec = lake.cluster.get(RESTATEMENTS, "ns", "erase")["spec"]
    lake.cluster.patch(RESTATEMENTS, "ns", "erase", {"spec": {**spec, "ttlSecondsAfterFinished": 0}})
    reconcile(lake)  # it has succeeded; its rows are still to go
    path = close(lake, a_record(lake))
    content = path.read_bytes()
    changed(path)

    for _ in range(2):
        with pytest.raises(Exception, match="SHA-256"):
            reconcile(lake)
    before = lake.erased()
    path.write_bytes(content)
    reconcile(lake)

    assert before == ("False", "RecordNotSigned")
    assert lake.erased() == ("True", "Erased")
    assert Path(f"{path}.sig").exists()


def test_a_file_in_place_of_the_signature_is_not_overwritten(lake: ErasingLake) -> None:
    path = close(lake, a_record(lake))
    Path(f"{path}.sig").write_bytes(b"mine")

    with pytest.raises(Exception, match="another content"):
        reconcile(lake)

    assert Path(f"{path}.sig").read_bytes() == b"mine"


def test_the_keys_beside_the_signing_key_are_those_that_signed_before(tmp_path: Path) -> None:
    """They may be public or private, several in a file."""
    plain = serialization.NoEncryption()
    private = [
        Ed25519PrivateKey.from_private_bytes(bytes([n]) * 32).private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain
        )
        for n in range(3)
    ]
    signers = [load_signer(p, "k") for p in private]
    public = signers[1].public.key.public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    (tmp_path / "key.pem").write_bytes(private[0])
    (tmp_path / "until-2026.pem").write_bytes(public + b"\n" + private[2])

    found = with_files(Settings(), {"LETHE_SIGNING_KEY_FILE": str(tmp_path / "key.pem")})
    (tmp_path / "until-2027.pem").write_text("no key")

    assert found.signer is not None
    assert found.signer.public.id == signers[0].public.id
    assert [k.id for k in found.former_keys] == [s.public.id for s in signers[1:]]
    with pytest.raises(InvalidSettings, match=r"until-2027\.pem"):
        with_files(Settings(), {"LETHE_SIGNING_KEY_FILE": str(tmp_path / "key.pem")})


def test_a_signing_key_that_cannot_be_read_keeps_the_operator_from_starting(tmp_path: Path) -> None:
    (tmp_path / "key.pem").write_text("no key")

    for name in ("key.pem", "absent.pem"):
        with pytest.raises(InvalidSettings, match="LETHE_SIGNING_KEY_FILE"):
            with_files(Settings(), {"LETHE_SIGNING_KEY_FILE": str(tmp_path / name)})
