"""`lethe erasures`, as an auditor runs it, on a real table without Spark: what was changed after the fact is found."""

import gzip
import hashlib
import io
import json
import shutil
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import UUID

import fastavro
import pyarrow as pa
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from click.testing import Result
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from lethe.cli.opening import open_table
from lethe.contract.result import ErasureOutcome
from lethe.contract.run import Provenance
from lethe.erasure.progress import OpenErasure
from lethe.erasure.record import Signer, Statement, Verification, record
from lethe.erasure.request_record import AskedErasure, RequestStatement, TableErasure, request_record
from lethe.files.bounds import IdIndex
from lethe.ledger.tombstone import Erasure, PurgedFile
from lethe.restatement.plan import recalled, values_digest
from pyiceberg.catalog import Catalog
from pyiceberg.types import UUIDType

from tests.support.builders import NOW, RUN, a_request_entry
from tests.support.tables import SCHEMA, commit_delta, new_table
from tests.tables.lethe.cli.conftest import NAME, Kept

KEY, OTHER = (Ed25519PrivateKey.from_private_bytes(n * 32) for n in (b"1", b"2"))
DIGEST_KEY = b"k" * 32
ERASE, LATER = "ns/erase/0", "ns/later/0"
Command = Callable[..., Result]


@dataclass(frozen=True)
class Erased:
    """A table from which batch A was erased; what was removed lies in `bin`, with the path that it had."""

    kept: Kept
    path: Path  # of the record
    removed: Path
    bin: Path

    @property
    def signature(self) -> Path:
        return Path(f"{self.path}.sig")


def pem(key: Ed25519PrivateKey, folder: Path, name: str = "key.pub") -> Path:
    info = serialization.PublicFormat.SubjectPublicKeyInfo
    (folder / name).write_bytes(key.public_key().public_bytes(serialization.Encoding.PEM, info))
    return folder / name


def close(kept: Kept, key: str, batch: str, files: list[Path], signer: Signer | None = None, **result: Any) -> Path:
    """A run has verified an erasure, and the operator has signed. Returns: where the record lies."""
    uuid, location = str(kept.table.metadata.table_uuid), kept.table.location()
    provenance = Provenance(reason="consent withdrawn", ticket="GDPR-17")
    ids = (batch,) if batch else ()
    asked = a_request_entry(key, operation="Erase", batch_ids=ids, provenance=provenance, **result)
    claim = OpenErasure(Erasure(key, 2, None, 5, 5, NOW), recalled(asked), IdIndex(()), False, False, 4)
    seen = Verification(RUN, NOW, 9, 3, (), {}, True, True, 0)
    gone = [PurgedFile(f"file://{f}", 10, "data", (key,)) for f in files]
    table = {"name": "air.flights", "uuid": uuid, "location": location}
    made = record(claim, table, gone, seen, (), values_digest([batch.encode()], DIGEST_KEY))
    path = Path(location.removeprefix("file://"), "_erasures", made.name)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(made.content)
    if signer is not None:
        Path(f"{path}.sig").write_bytes(signer.file(Statement(uuid, key, made.sha256, NOW)))
    outcome = ErasureOutcome(restatement=key, verified_time=NOW, record=f"file://{path}", record_sha256=made.sha256)
    reported = outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
    commit_delta(kept.table, set_requests=(replace(asked, result={**asked.result, "erasure": reported}),))
    return path


@pytest.fixture
def erased(flights: Kept, tmp_path: Path) -> Erased:
    flights.append("B")
    before = set(data_files(flights))
    flights.append("A")
    (removed,) = set(data_files(flights)) - before
    path = close(flights, ERASE, "A", [removed], Signer(KEY))
    pem(KEY, tmp_path)
    shutil.move(removed, tmp_path / "bin")
    return Erased(flights, path, removed, tmp_path / "bin")


def data_files(kept: Kept) -> list[Path]:
    return sorted(Path(kept.table.location().removeprefix("file://"), "data").rglob("*.parquet"))


def codes(result: Result) -> list[str]:
    return [p["code"] for p in json.loads(result.output)["problems"]]


def test_erasures_are_listed_open_ones_first_and_shown(erased: Erased, lethe: Command) -> None:
    asked = a_request_entry(LATER, operation="Erase", batch_ids=("B",))
    commit_delta(erased.kept.table, set_requests=(asked,), set_erasures=(Erasure(LATER, 2, NOW),))

    listed = json.loads(lethe("erasures", "list", NAME, "--json").output)
    table = lethe("erasures", "list", NAME)
    shown = lethe("erasures", "show", NAME, "ns/erase")
    whole = lethe("erasures", "show", NAME, "ns/erase", "--json")

    assert [(e["restatement"], e["state"], e["ticket"]) for e in listed] == [
        ("ns/later", "rows in table", None),
        ("ns/erase", "verified", "GDPR-17"),
    ]
    assert (table.exit_code, "GDPR-17" in table.output, erased.path.name in table.output) == (0, True, True)
    assert "consent withdrawn" in shown.output
    assert f"{erased.path}.sig" in shown.output
    assert json.loads(whole.output) == json.loads(erased.path.read_bytes())


def test_an_unchanged_record_verifies(erased: Erased, lethe: Command, tmp_path: Path) -> None:  # noqa: ARG001
    found = lethe("erasures", "verify", NAME, "--public-key", tmp_path / "key.pub", "--storage")

    assert (found.exit_code, found.output.endswith("1 erasures: no problems\n")) == (0, True), found.output


def test_unverified_parts_are_reported(erased: Erased, lethe: Command) -> None:  # noqa: ARG001
    found = lethe("erasures", "verify", NAME)

    assert found.exit_code == 0
    assert "signatures were not verified" in found.output
    assert "the storage was not searched" in found.output


def flip(path: Path) -> None:
    """One bit."""
    content = bytearray(path.read_bytes())
    content[content.index(b"GDPR-17")] ^= 1
    path.write_bytes(content)


def reformat(path: Path) -> None:
    path.write_text(json.dumps(json.loads(path.read_bytes()), indent=1))


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (flip, ["RecordChanged"]),
        (Path.unlink, ["RecordMissing"]),
        (lambda p: p.write_bytes(b"{"), ["RecordChanged", "RecordUnreadable"]),
        (reformat, ["RecordChanged", "RecordNotCanonical"]),
        (lambda p: Path(f"{p}.sig").unlink(), ["SignatureMissing"]),
        (lambda p: Path(f"{p}.sig").write_bytes(b"{}"), ["SignatureInvalid"]),
    ],
    ids=["changed byte", "no record", "truncated", "other form", "no signature", "no signature file"],
)
def test_a_changed_record_or_signature_is_found(
    erased: Erased, lethe: Command, tmp_path: Path, change: Callable[[Path], object], expected: list[str]
) -> None:
    change(erased.path)

    found = lethe("erasures", "verify", NAME, "ns/erase", "--public-key", tmp_path / "key.pub", "--json")

    assert (found.exit_code, codes(found)) == (1, expected)


def test_a_signature_by_another_key_is_found(erased: Erased, lethe: Command, tmp_path: Path) -> None:  # noqa: ARG001
    other = pem(OTHER, tmp_path, "other.pub")

    wrong = lethe("erasures", "verify", NAME, "--public-key", other, "--json")
    both = lethe("erasures", "verify", NAME, "--public-key", other, "--public-key", tmp_path / "key.pub", "--json")

    assert (wrong.exit_code, codes(wrong)) == (1, ["SignatureInvalid"])
    assert both.exit_code == 0  # as after a key was replaced


def test_the_record_of_another_erasure_is_found(erased: Erased, lethe: Command, tmp_path: Path) -> None:
    """With its hash in the ledger, as somebody with the table's credentials could write it, and with its own signature."""
    close(erased.kept, LATER, "C", [], Signer(KEY))
    of_other = dict(open_table(NAME).ledger().requests[LATER].result["erasure"])
    entry = a_request_entry(ERASE, operation="Erase", batch_ids=("A",))
    reported = {**entry.result, "erasure": {**of_other, "restatement": ERASE}}
    commit_delta(erased.kept.table, set_requests=(replace(entry, result=reported),))

    found = lethe("erasures", "verify", NAME, "ns/erase", "--public-key", tmp_path / "key.pub", "--json")

    assert (found.exit_code, codes(found)) == (1, ["RecordOfAnother", "SignatureInvalid"])


def without_field_ids(erased: Erased) -> None:
    rows = pq.read_table(erased.bin).replace_schema_metadata().cast(SCHEMA)
    pq.write_table(rows, erased.removed.with_name("loose.parquet"))


def in_other_formats(erased: Erased) -> None:
    data = erased.removed.parent
    orc.write_table(pa.table({"batch_id": ["A"]}), data / ".rows")
    with (data / "rows").open("wb") as stream:
        schema = {"type": "record", "name": "r", "fields": [{"name": "batch_id", "type": "string"}]}
        fastavro.writer(stream, schema, [{"batch_id": "A"}])
    shutil.copy(erased.bin, data / "_temporary.bak")


def before_it_was_renamed(erased: Erased) -> None:
    without_field_ids(erased)
    with erased.kept.table.transaction() as change:
        change.set_properties({"lethe.batch-column-id": "2"})
    with erased.kept.table.update_schema() as columns:
        columns.rename_column("batch_id", "load")


CAME_BACK: dict[str, tuple[Callable[[Erased], object], dict[str, str]]] = {
    "out of a backup, so no snapshot names it": (
        lambda erased: shutil.move(erased.bin, erased.removed),
        {"FileIsThere": "", "BatchIsThere": "1 data files"},
    ),
    "in another file": (lambda erased: erased.kept.append("A", "B"), {"BatchIsThere": "1 data files"}),
    "in a file without field ids, of another engine": (without_field_ids, {"BatchIsThere": "1 data files"}),
    "in such a file, from before the batch column was renamed": (
        before_it_was_renamed,
        {"BatchIsThere": "1 data files"},
    ),
    "in any format and under any name": (in_other_formats, {"BatchIsThere": "3 data files"}),
}


@pytest.mark.parametrize(("come_back", "expected"), CAME_BACK.values(), ids=CAME_BACK)
def test_rows_that_came_back_are_found(
    erased: Erased, lethe: Command, come_back: Callable[[Erased], object], expected: dict[str, str]
) -> None:
    come_back(erased)

    found = lethe("erasures", "verify", NAME, "--storage", "--json")

    problems = {p["code"]: p["what"] for p in json.loads(found.output)["problems"]}
    assert (found.exit_code, list(problems)) == (1, list(expected))
    assert [code for code, words in expected.items() if words not in problems[code]] == []


@pytest.mark.parametrize(
    ("properties", "code"), [({"lethe.batch-column-id": "2"}, "BatchIsThere"), ({}, "NotReadable")]
)
def test_rows_are_searched_for_also_if_the_table_has_no_batch_column_any_more(
    erased: Erased, lethe: Command, properties: dict[str, str], code: str
) -> None:
    """Its data files still have the column."""
    erased.kept.append("A")
    with erased.kept.table.transaction() as change:
        change.set_properties({"x": "y", **properties})
    with erased.kept.table.update_schema() as columns:
        columns.delete_column("batch_id")

    found = lethe("erasures", "verify", NAME, "--storage", "--json")

    assert (found.exit_code, codes(found)) == (1, [code]), found.output


def test_a_value_is_searched_for_in_every_object_and_not_printed(
    erased: Erased, lethe: Command, catalog: Catalog, tmp_path: Path
) -> None:
    del catalog
    (tmp_path / "values").write_text("Ada Lovelace\n4711\n")
    search = ("erasures", "verify", NAME, "--storage", "--values", tmp_path / "values")
    clean = lethe(*search)
    folder = Path(erased.kept.table.location().removeprefix("file://"))
    erased.kept.append(*"BBBB", start=4710)  # a number, which is text nowhere
    of_rows = lethe(*search, "--json")
    (folder / "metadata/stats.puffin").write_bytes(b"PFA1..Ada Lovelace..")
    (folder / "data/name=Ada%20Lovelace").mkdir()
    (folder / "data/name=Ada%20Lovelace/x.txt").write_bytes(b"")

    found = lethe(*search)

    assert (clean.exit_code, codes(of_rows)) == (0, ["ValueIsThere"])
    assert (found.exit_code, "3 objects with one of the values" in found.output) == (1, True), found.output
    assert "Lovelace" not in found.output


SECRETS: dict[str, tuple[pa.DataType, Any]] = {
    # what is searched for, and the value that a column of some type holds
    "4711": (pa.int32(), 4711),
    "4713": (pa.int64(), 4713),
    "4711.5": (pa.float64(), 4711.5),
    "47.11": (pa.decimal128(9, 2), Decimal("47.11")),
    "1998-03-01": (pa.date32(), date(1998, 3, 1)),
    "1999-03-01T10:00:00": (pa.timestamp("us"), datetime(1999, 3, 1, 10)),  # noqa: DTZ001
    "Ada": (pa.string(), "Ada"),
    "123e4567-e89b-12d3-a456-426614174000": (pa.binary(16), UUID("123e4567-e89b-12d3-a456-426614174000").bytes),
}


def test_a_value_is_found_in_the_bounds_of_its_column_in_a_manifest(
    erased: Erased, lethe: Command, tmp_path: Path
) -> None:
    """The data file is gone, and the manifest that an expired snapshot has left still has the least value of its column."""
    table, values = erased.kept.table, tmp_path / "values"
    columns = {f"secret_{n}": pa.array([value], kind) for n, (kind, value) in enumerate(SECRETS.values())}
    *others, (of_uuid, _) = columns.items()
    with table.update_schema() as change:
        change.union_by_name(pa.schema([(name, column.type) for name, column in others]))
    with table.update_schema() as change:
        change.add_column(of_uuid, UUIDType())
    table.append(pa.table({"v": [1], "batch_id": ["B"], **columns}).cast(table.schema().as_arrow()))
    for file in Path(table.location().removeprefix("file://"), "data").rglob("*.parquet"):
        if of_uuid in pq.read_schema(file).names:
            file.unlink()

    def search(text: str) -> Result:
        values.write_text(f"{text}\n")
        return lethe("erasures", "verify", NAME, "--storage", "--values", values, "--json")

    for text in SECRETS:
        found = search(text)
        assert (codes(found), ".avro" in found.output) == (["ValueIsThere"], True), text
    assert codes(search("4712\n1998-03-02\nBob\n47.12")) == []


def test_a_folder_that_only_an_old_metadata_file_names_is_searched(
    erased: Erased, lethe: Command, tmp_path: Path
) -> None:
    """The metadata log is shorter than the history, and no commit of Lethe has seen the folder."""
    table, folder = erased.kept.table, tmp_path / "elsewhere"
    with table.transaction() as change:
        change.set_properties({"write.metadata.previous-versions-max": "1", "write.data.path": f"file://{folder}"})
    with table.transaction() as change:
        change.remove_properties("write.data.path")
    for n in range(3):
        with table.transaction() as change:
            change.set_properties({"n": str(n)})
    folder.mkdir()
    shutil.copy(erased.bin, folder / "left.parquet")
    (tmp_path / "values").write_text("Ada Lovelace\n")
    (folder / "notes").write_text("Ada Lovelace")

    found = lethe("erasures", "verify", NAME, "--storage", "--values", tmp_path / "values", "--json")

    assert codes(found) == ["ValueIsThere"]
    assert f"{folder}/notes" in found.output


def test_every_object_that_holds_a_value_or_cannot_be_searched_is_named_whatever_its_name(
    erased: Erased, lethe: Command
) -> None:
    """The value comes from the standard input. No message contains it."""
    value = "Ada Lovelace"
    folder = Path(erased.kept.table.location().removeprefix("file://"))
    rows, text = pa.BufferOutputStream(), f"{value}\n".encode()
    pq.write_table(pa.table({"x": [value]}), rows)
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("rows.parquet", rows.getvalue().to_pybytes())
    holding = {
        "data/.hidden.parquet": rows.getvalue().to_pybytes(),
        "data/_temporary/0/part-0": rows.getvalue().to_pybytes(),
        "_runs/leftover": gzip.compress(text),
        "checkpoints/0/archive": gzip.compress(packed.getvalue()),
        "metadata/old.metadata.json": json.dumps({"comment": value}).encode(),
        "_erasures/copy.json": text,
    }
    unreadable = {"data/broken.parquet": b"PAR1 and no more", "data/secret.bin": bytes(range(256))}
    for name, content in {**holding, **unreadable}.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)

    found = lethe("erasures", "verify", NAME, "--storage", "--values", "-", "--json", told=f"{value}\n")

    problems = json.loads(found.output)["problems"]
    (there,) = (p["what"] for p in problems if p["code"] == "ValueIsThere")
    assert found.exit_code == 1
    assert f" {len(holding)} objects" in there
    assert [n for n in holding if f"/{n}" not in there] == []
    named = [p["what"].partition(" ")[0].rpartition("/")[2] for p in problems if p["code"] == "NotReadable"]
    assert named == ["broken.parquet", "secret.bin"]
    assert "Lovelace" not in found.output
    assert "Ada" not in found.output


def test_the_digest_of_the_batches_is_compared(erased: Erased, lethe: Command, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "digest-key").write_bytes(DIGEST_KEY)
    (tmp_path / "other-key").write_bytes(b"o" * 32)
    (tmp_path / "short-key").write_bytes(b"o")

    same, other, short = (
        lethe("erasures", "verify", NAME, "--digest-key", tmp_path / f"{name}-key", "--json")
        for name in ("digest", "other", "short")
    )

    assert (same.exit_code, other.exit_code, codes(other)) == (0, 1, ["DigestDiffers"])
    assert "another key" in other.output
    assert (short.exit_code, "InvalidKey" in short.output) == (10, True)


def test_the_digest_of_values_is_compared_with_those_that_are_given(
    flights: Kept, lethe: Command, tmp_path: Path
) -> None:
    flights.append("A")
    digest = values_digest([b"Ada\nGrace"], DIGEST_KEY)
    close(flights, ERASE, "", [], values_digest=digest)
    (tmp_path / "key").write_bytes(DIGEST_KEY)
    (tmp_path / "same").write_text("Grace\r\nAda\n")
    (tmp_path / "fewer").write_text("Ada\n")
    compare = ("erasures", "verify", NAME, "ns/erase", "--digest-key", tmp_path / "key", "--json", "--values")

    same, fewer = lethe(*compare, tmp_path / "same"), lethe(*compare, tmp_path / "fewer")
    of_which = lethe("erasures", "verify", NAME, "--digest-key", tmp_path / "key", "--values", tmp_path / "same")

    assert (same.exit_code, fewer.exit_code, codes(fewer)) == (0, 1, ["DigestDiffers"]), same.output
    assert "Ada" not in fewer.output
    assert of_which.exit_code == 2


def test_an_open_erasure_has_no_evidence(erased: Erased, lethe: Command) -> None:
    asked = a_request_entry(LATER, operation="Erase", batch_ids=("B",))
    commit_delta(erased.kept.table, set_requests=(asked,), set_erasures=(Erasure(LATER, 2, NOW),))

    named = lethe("erasures", "verify", NAME, "ns/later", "--json")
    shown = lethe("erasures", "show", NAME, "ns/later")

    assert (named.exit_code, codes(named)) == (1, ["NotVerified"])
    assert (shown.exit_code, "NotVerified" in shown.output) == (10, True)
    assert lethe("erasures", "verify", NAME).exit_code == 0  # of those that are closed


def test_arguments_that_cannot_be_are_refused(erased: Erased, lethe: Command, tmp_path: Path) -> None:  # noqa: ARG001
    (tmp_path / "no.pub").write_text("no key")
    (tmp_path / "values").write_text("v")

    unknown = lethe("erasures", "verify", NAME, "ns/nobody")
    no_key = lethe("erasures", "verify", NAME, "--public-key", tmp_path / "no.pub")
    no_storage = lethe("erasures", "verify", NAME, "--values", tmp_path / "values")

    assert (unknown.exit_code, "UnknownErasure" in unknown.output) == (10, True)
    assert (no_key.exit_code, "InvalidKey" in no_key.output) == (10, True)
    assert (no_storage.exit_code, "--values needs --storage or --digest-key" in no_storage.output) == (2, True)


def test_a_table_without_erasures_has_nothing_to_verify(catalog: Catalog, lethe: Command) -> None:
    Kept(new_table(catalog, "air.new")).append("A")

    found = lethe("erasures", "verify", "lite.air.new", "--storage")

    assert (found.exit_code, "0 erasures" in found.output) == (0, True)


@pytest.fixture
def requested(erased: Erased, catalog: Catalog) -> Path:
    """The signed record of a subject request, over the erased table and another one. It lies beside the first table."""
    other = Kept(new_table(catalog, "air.other"))
    other.append("A")
    own = {"erase": erased.path, "later": close(other, LATER, "", [], Signer(KEY))}
    tables = [
        TableErasure(
            dataset=name,
            table=f"lite.air.{table}",
            restatement=f"ns/{name}",
            columns=("email",),
            rows_erased=1,
            record=f"file://{path}",
            record_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
            signature=None,
            verified_time=NOW,
        )
        for (name, path), table in zip(own.items(), ("flights", "other"), strict=True)
    ]
    made = request_record(AskedErasure("ns/all/0", "ns/all", ("customer",), {}, Provenance()), tables, ())
    path = erased.path.with_name(made.name)
    path.write_bytes(made.content)
    Path(f"{path}.sig").write_bytes(Signer(KEY).file(RequestStatement("ns/all/0", made.sha256, NOW)))
    return path


@pytest.mark.parametrize("uri", [False, True])
def test_one_record_verifies_all_tables_of_a_subject(
    requested: Path, lethe: Command, tmp_path: Path, uri: bool
) -> None:
    place = f"file://{requested}" if uri else str(requested)
    found = lethe("erasures", "verify", place, "--public-key", tmp_path / "key.pub", "--json")

    report = json.loads(found.output)
    assert (found.exit_code, report["problems"]) == (0, []), found.output
    assert report["erasures"] == ["ns/erase", "ns/later"]


@pytest.mark.parametrize("how", ["--dir", "LETHE_LOCAL", "neither"])
def test_a_record_of_lethe_local_is_verified_with_its_catalogs(
    requested: Path, lethe: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    """The record does not say where it is from. A user with other catalogs has to."""
    local, home = tmp_path / "local", tmp_path / "home"
    for folder in (local, home):
        folder.mkdir()
    (tmp_path / ".pyiceberg.yaml").rename(local / ".pyiceberg.yaml")
    (home / ".pyiceberg.yaml").write_text("catalog: {mine: {type: sql, uri: 'sqlite://'}}")
    monkeypatch.setenv("PYICEBERG_HOME", str(home))
    monkeypatch.delenv("LETHE_LOCAL", raising=False)
    if how == "LETHE_LOCAL":
        monkeypatch.setenv(how, str(local))

    found = lethe("erasures", "verify", str(requested), "--json", *(("--dir", local) if how == "--dir" else ()))

    report = json.loads(found.output)
    assert (found.exit_code, codes(found)) == ((1, ["NotVerified"] * 2) if how == "neither" else (0, [])), report


CHANGES_OF_A_REQUEST: dict[str, tuple[Callable[[Erased, Path], Any], str]] = {
    "another content": (
        lambda _, path: path.write_bytes(path.read_bytes().replace(b"email", b"phone")),
        "RecordChanged",
    ),
    "no signature": (lambda _, path: Path(f"{path}.sig").unlink(), "SignatureMissing"),
    "the signature of a table's record": (
        lambda erased, path: shutil.copy(erased.signature, f"{path}.sig"),
        "SignatureInvalid",
    ),
    "a table's record": (lambda erased, _: flip(erased.path), "RecordChanged"),
    "another form": (lambda _, path: reformat(path), "RecordNotCanonical"),
}


@pytest.mark.parametrize("change", CHANGES_OF_A_REQUEST)
def test_a_changed_record_of_a_subject_is_found(
    erased: Erased, requested: Path, lethe: Command, tmp_path: Path, change: str
) -> None:
    act, code = CHANGES_OF_A_REQUEST[change]
    act(erased, requested)
    found = lethe("erasures", "verify", str(requested), "--public-key", tmp_path / "key.pub", "--json")

    assert (found.exit_code, code in codes(found)) == (1, True), found.output


def test_a_record_that_is_none_is_refused(erased: Erased, lethe: Command, tmp_path: Path) -> None:
    missing = lethe("erasures", "verify", str(tmp_path / "no.json"))
    of_a_table = lethe("erasures", "verify", str(erased.path))

    assert ("RecordMissing" in missing.output, "RecordUnreadable" in of_a_table.output) == (True, True)


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (lambda _: b"[" * 100_000, "RecordUnreadable"),
        (lambda document: json.dumps({**document, "datasets": 7}).encode(), "RecordUnreadable"),
        (lambda document: json.dumps({**document, "datasets": [7]}).encode(), "RecordUnreadable"),
        (lambda document: json.dumps({**document, "not-covered": float("nan")}).encode(), "RecordNotCanonical"),
    ],
)
def test_a_record_of_a_subject_in_any_form_is_judged(
    requested: Path, lethe: Command, change: Callable[[Any], bytes], code: str
) -> None:
    requested.write_bytes(change(json.loads(requested.read_bytes())))

    found = lethe("erasures", "verify", str(requested))

    assert (code in found.output, "Unexpected" in found.output) == (True, False), found.output


@pytest.mark.parametrize(
    ("content", "code"),
    [
        (b"[" * 100_000, "RecordUnreadable"),
        (b'{"format-version": 2, "files": NaN}\n', "RecordNotCanonical"),
        (b'{"format-version": 2, "files": 7}\n', "RecordNotCanonical"),
    ],
)
def test_a_record_in_any_form_is_judged(erased: Erased, lethe: Command, content: bytes, code: str) -> None:
    erased.path.write_bytes(content)

    found = lethe("erasures", "verify", NAME, "--storage", "--json")

    assert (found.exit_code, {"RecordChanged", code} <= set(codes(found))) == (1, True), found.output


def test_a_subject_is_verified_also_if_its_restatements_were_made_a_second_time(
    requested: Path, erased: Erased, lethe: Command
) -> None:
    """Another request of the same name makes Restatements of the same names, with other keys."""
    close(erased.kept, f"{ERASE}x", "B", [], Signer(KEY))

    found = lethe("erasures", "verify", str(requested), "--json")

    assert (found.exit_code, codes(found)) == (0, []), found.output
