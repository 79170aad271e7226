"""What a run makes of its arguments, of errors, and of secrets."""

import hashlib
import json
import logging
from pathlib import Path
from threading import Event
from types import SimpleNamespace

import pytest
from lethe.base.errors import ConflictError, InputError, LetheError
from lethe.contract.result import RefusedBatch, RequestResult, RestatementGroupResult
from lethe.contract.run import INLINE_BYTES_AT_MOST, ResultPointer, RunKind, RunPointer, TableRef
from lethe.iceberg import run_documents
from lethe.version import version
from lethe_spark.apps import app
from lethe_spark.jvm.errors import understood
from lethe_spark.run import context, progress
from lethe_spark.run.redact import RedactingFormatter, secrets_of
from py4j.protocol import Py4JError
from pyiceberg.catalog import load_catalog
from pyiceberg.exceptions import NoSuchTableError, OAuthError, ServiceUnavailableError
from pyiceberg.schema import Schema

from tests.support.builders import a_run, a_run_result, read_result


@pytest.fixture
def run_file(tmp_path: Path) -> Path:
    return tmp_path / "run.json"


def test_a_run_is_read_from_its_file(run_file: Path) -> None:
    run_file.write_text(a_run(RunKind.VACUUM).to_json())

    assert context.load_run(run_file) == a_run(RunKind.VACUUM)


def test_a_long_run_is_fetched_from_its_pointer_and_checked(
    run_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    (tmp_path / ".pyiceberg.yaml").write_text("catalog:\n  lite:\n    type: sql\n    uri: sqlite:///x\n")
    long = a_run(batch_ids=[f"b{n}" for n in range(20_000)]).to_json()
    (tmp_path / "long.json").write_text(long)
    sha256 = hashlib.sha256(long.encode()).hexdigest()
    pointer = RunPointer(catalog="lite", uri=f"file://{tmp_path}/long.json", sha256=sha256)
    run_file.write_text(pointer.to_json())

    spec = context.load_run(run_file)
    assert spec.consolidation is not None
    assert len(spec.consolidation.batch_ids) == 20_000

    run_file.write_text(pointer.model_copy(update={"sha256": "0" * 64}).to_json())
    with pytest.raises(InputError, match=r"RunFileChanged: .*long\.json has SHA-256"):
        context.load_run(run_file)


def test_a_wrong_run_names_the_field_and_not_its_value(run_file: Path) -> None:
    document = json.loads(a_run().to_json())
    document["table"]["name"] = {"password": "topsecret"}
    run_file.write_text(json.dumps(document))

    with pytest.raises(InputError, match=r"InvalidRun: .*table\.name: .*string") as wrong:
        context.load_run(run_file)
    assert "topsecret" not in str(wrong.value)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{", "is not JSON"),
        ("[]", "InvalidRun"),
        (a_run(consolidation=None).to_json(), "the field consolidation is missing"),
    ],
)
def test_a_run_that_cannot_be_meant_is_refused(run_file: Path, text: str, problem: str) -> None:
    run_file.write_text(text)

    with pytest.raises(InputError, match="InvalidRun") as wrong:
        context.load_run(run_file)
    assert problem in str(wrong.value)


def with_field(at: str, value: object) -> str:
    """A run with a field that this version does not know, such as `boundary.schemas`."""
    document = json.loads(a_run().to_json())
    *path, last = at.split(".")
    part = document
    for key in path:
        part = part.setdefault(key, {})
    part[last] = value
    return json.dumps(document)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        (a_run(api_version="lethe.dev/run/v9").to_json(), "apiVersion is lethe.dev/run/v9"),
        (with_field("newer", "topsecret"), "newer: Extra inputs are not permitted"),
        (with_field("boundary.newer", False), "boundary.newer: Extra inputs"),
        (with_field("consolidation.mode", "Newer"), "consolidation.mode: Input should be"),
    ],
)
def test_a_run_of_a_newer_operator_is_not_carried_out_and_reports_the_version_of_its_image(
    run_file: Path, tmp_path: Path, text: str, found: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is transient: once the images are of one release, the next attempt succeeds without a change."""
    run_file.write_text(text)
    where = {progress.TERMINATION_LOG_ENV: str(tmp_path / "termination")}
    (tmp_path / "termination").touch()

    ended = app.carry_out(
        context.RunInvocation(run_file, where),
        context.Arguments({}),
        Event(),
        RedactingFormatter(),
    )

    told = read_result((tmp_path / "termination").read_text())
    assert (ended.code, ended.delivered) == (20, True)
    assert (told.outcome, told.reason, told.permanent) == ("Failed", "VersionSkew", False)
    assert (told.run_id, told.version) == (a_run().run_id, version())
    assert found in told.message
    assert "image.operator and image.spark to the same release" in told.message
    assert "topsecret" not in told.message + capsys.readouterr().err


def test_a_file_that_names_no_run_has_no_result(run_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run_file.write_text('{"kind": "Consolidation"}')

    ended = app.carry_out(context.RunInvocation(run_file, {}), context.Arguments({}), Event(), RedactingFormatter())

    assert (ended.code, ended.delivered) == (10, False)
    assert "InvalidRun" in capsys.readouterr().err


def test_a_missing_run_file_is_the_launchers_to_correct(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="RunFileMissing"):
        context.load_run(tmp_path / "none.json")


def test_settings_are_pairs_and_sparks() -> None:
    run, given = context.parse(["--conf", "spark.a=1=2", "--run", "x"], {"LETHE_RUN_FILE": "/r"})
    assert (dict(given.confs), str(run.run_file)) == ({"spark.a": "1=2"}, "x")
    assert str(context.parse([], {"LETHE_RUN_FILE": "/r"})[0].run_file) == "/r"
    for wrong in ("spark.a", "hadoop.a=1"):
        with pytest.raises(SystemExit):
            context.parse(["--conf", wrong], {})


@pytest.mark.parametrize(
    ("error", "reason", "code"),
    [
        (InputError("TableNotFound", "m"), "TableNotFound", 10),
        (ConflictError("LedgerMoved", "m"), "LedgerMoved", 20),
        (ConnectionRefusedError("postgres://u:topsecret@db"), "CatalogOrStorageAway", 20),
        (OSError(28, "No space left on device", "/topsecret"), "DiskFull", 20),
        (ServiceUnavailableError("topsecret"), "CatalogOrStorageAway", 20),
        (OAuthError("topsecret"), "CatalogOrStorageAway", 20),
        (NoSuchTableError("topsecret"), "UnexpectedError", 20),
        (ZeroDivisionError("topsecret"), "UnexpectedError", 20),
    ],
)
def test_errors_become_a_reason_and_an_exit_code_without_their_text(error: Exception, reason: str, code: int) -> None:
    known: LetheError = understood(error)

    assert (known.reason, known.exit_code) == (reason, code)
    assert "topsecret" not in str(known)


class JavaError:
    """An exception of Java with a cause, as py4j shows it."""

    def __init__(self, name: str, cause: "JavaError | None" = None) -> None:
        self.getClass = lambda: SimpleNamespace(getName=lambda: name)
        self.getMessage = lambda: "topsecret"
        self.getCause = lambda: cause


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("org.postgresql.util.PSQLException", "CatalogOrStorageAway"),
        ("software.amazon.awssdk.core.exception.SdkClientException", "CatalogOrStorageAway"),
        ("com.google.cloud.storage.StorageException", "CatalogOrStorageAway"),
        ("com.azure.storage.blob.models.BlobStorageException", "CatalogOrStorageAway"),
        ("javax.net.ssl.SSLHandshakeException", "CatalogOrStorageAway"),
        ("org.apache.iceberg.exceptions.ForbiddenException", "CatalogOrStorageAway"),
        ("java.lang.ArithmeticException", "SparkFailed"),
    ],
)
def test_a_service_that_fails_below_spark_is_not_the_runs_own_fault(name: str, reason: str) -> None:
    """Whoever fails twice by its own fault shares its next run with fewer others."""
    error = Py4JError("topsecret")
    error._origin = JavaError("org.apache.spark.SparkException", JavaError(name))  # type: ignore[attr-defined]

    known = understood(error)

    assert known.reason == reason
    assert "topsecret" not in str(known)


def test_secrets_are_blotted_out_of_the_log_in_every_spelling() -> None:
    formatter = RedactingFormatter()
    formatter.secrets = secrets_of(
        {
            "uri": "postgresql+psycopg2://u:p%40ss%2Fword@db/x",
            "s3.secret-access-key": "topsecret",
            "warehouse": "s3://lake",
        }
    )
    record = logging.LogRecord("x", 20, "f", 1, "p@ss/word p%%40ss%%2Fword topsecret s3://lake", None, None)
    record.msg = record.msg.replace("%%", "%")

    assert formatter.format(record).endswith(" INFO x: *** *** *** s3://lake")


def test_a_result_is_cut_until_it_fits(run_file: Path) -> None:
    _ = run_file
    refused = tuple(RefusedBatch(batch_id=f"b{n}", reason="UnreadableFile", message="m" * 9000) for n in range(20))
    long = a_run_result(RunKind.CONSOLIDATION, refused=refused, refused_count=20)

    small = read_result(progress.bounded(long))
    assert small == long.model_copy(update={"refused": ()})
    assert len(progress.bounded(long).encode()) <= progress.LARGEST


@pytest.mark.parametrize(("bad", "reported"), [(3, 3), (3000, 93)])
def test_a_long_group_reports_the_requests_that_were_not_carried_out(run_file: Path, bad: int, reported: int) -> None:
    """The others are in the table's ledger; of these nobody else tells."""
    _ = run_file
    requests = [
        RequestResult(
            key=f"ns/r{n}/0", name=f"ns/r{n}", succeeded=n >= bad, reason="R" if n < bad else "", message="m" * 200
        )
        for n in range(6000)
    ]
    long = a_run_result(RunKind.RESTATEMENT, "Failed", requests=tuple(requests))

    small = read_result(progress.bounded(long))

    assert isinstance(small, RestatementGroupResult)
    assert small.requests == tuple(requests[:reported])
    assert len(progress.bounded(long).encode()) <= progress.LARGEST


def test_a_large_result_with_the_result_of_each_request_is_written_to_the_tables_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those who were refused would not learn it otherwise: the ledger knows only those who were not."""
    uri, warehouse = f"sqlite:///{tmp_path}/c.db", f"file://{tmp_path}/wh"
    (tmp_path / ".pyiceberg.yaml").write_text(
        f"catalog:\n  lite:\n    type: sql\n    uri: {uri}\n    warehouse: {warehouse}\n"
    )
    monkeypatch.setenv("PYICEBERG_HOME", str(tmp_path))
    catalog = load_catalog("lite", type="sql", uri=uri, warehouse=warehouse)
    catalog.create_namespace("air")
    location = catalog.create_table("air.flights", Schema()).location()
    answers = [
        RequestResult(key=f"k{n}", name=f"ns/r{n}", succeeded=False, reason="AlreadyReplaced") for n in range(3000)
    ]
    run = a_run(RunKind.RESTATEMENT)
    large = a_run_result(run.kind, "Failed", requests=tuple(answers))

    reported = ResultPointer.model_validate_json(
        progress.for_config_map(large, TableRef(catalog="lite", name="air.flights"))
    )
    cut = read_result(progress.for_config_map(large, TableRef(catalog="lite", name="air.gone")))

    assert (reported.uri, reported.run_id, reported.attempt) == (
        f"{location}/_runs/{run.run_id}-result-1.json",
        run.run_id,
        1,
    )
    assert read_result((run_documents.read(reported) or b"").decode()) == large
    assert isinstance(cut, RestatementGroupResult)
    kept = len(cut.requests)
    twice = large.model_copy(update={"requests": tuple(answers[: 2 * kept + 1])})
    assert cut.requests == tuple(answers[:kept])
    assert kept > 0
    assert len(twice.to_json().encode()) > INLINE_BYTES_AT_MOST
