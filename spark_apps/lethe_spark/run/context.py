"""The context of a run: its input, its Spark session, its reports, and the steps at which it can be stopped. I/O: reads files.

Errors in the input are InputError and name the field, because the launcher or the user must correct it. An input of another
version of Lethe is a TransientError, because a later attempt may have another image.
"""

import argparse
import hashlib
import json
import logging
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from json import JSONDecodeError
from pathlib import Path
from typing import Final, Protocol

from lethe.base.errors import InputError, TransientError
from lethe.contract.result import Phase
from lethe.contract.run import (
    CONTRACT_VERSION,
    AcceptedHead,
    RunIdentity,
    RunPointer,
    RunSpec,
    is_pointer,
    parse_run,
)
from lethe.iceberg import catalogs
from lethe.restatement.plan import values_digest
from lethe.storage import vended
from lethe.storage.file_io import file_io
from lethe.version import version
from pydantic import ValidationError
from pyiceberg.io import FileIO
from pyspark.sql import SparkSession

from lethe_spark.run.progress import Reporter

log = logging.getLogger(__name__)

CRASH_AT: Final = "LETHE_CRASH_AT"
KILLED: Final = 137
"""The exit code of a process that SIGKILL has ended."""

KEY_FILE_VARIABLE: Final = "LETHE_VALUES_DIGEST_KEY_FILE"

RUN_FILE: Final = "LETHE_RUN_FILE"
DEFAULT_RUN_FILE: Final = "/etc/lethe/run/run.json"
OF_NEWER_VERSION: Final = frozenset({"extra_forbidden", "enum"})
"""What pydantic finds in a document with a field, or a value of a closed set, that only another version of Lethe has."""


class Cancelled(TransientError):
    """The process received SIGTERM. The run's commits stay; the next attempt finds them and does the rest."""

    def __init__(self) -> None:
        super().__init__("Cancelled", "the run was stopped (SIGTERM); its next attempt continues.")


class Reports(Protocol):
    """Reports the progress of the work."""

    def phase(self, phase: Phase, message: str = "") -> None:
        """Report which phase of the work begins. `message` is for people and may be empty."""


class Committer(Protocol):
    """All that a commit needs to know about its run. A user's Spark job implements it too."""

    @property
    def catalog_properties(self) -> Mapping[str, str]:
        """PyIceberg's properties for the catalog and its FileIO."""

    @property
    def reporter(self) -> Reports:
        """Where the phases of the change are reported."""

    @property
    def table_name(self) -> str:
        """The name without the catalog: `namespace.table`."""

    @property
    def batch_column(self) -> str:
        """The column that holds the id of a row's batch."""

    @property
    def run_id(self) -> str:
        """Identifies the change in snapshot summaries, so that a repeated attempt finds its earlier commits."""

    @property
    def run_kind(self) -> str:
        """What kind of run commits, for snapshot summaries: the family of a run, or what a user's Spark job does."""

    @property
    def claim(self) -> str | None:
        """What the table's claim must be, if the table has one. None: any."""

    @property
    def accepts(self) -> AcceptedHead | None:
        """A head without its ledger that the commit may continue from. None: no such head."""

    @property
    def seen_table_uuid(self) -> str | None:
        """UUID of the table when the commit was requested; any other table is refused. None: it was not read."""

    @property
    def seen_snapshot_id(self) -> int | None:
        """Head when the commit was requested; a table rolled back since then is refused. None: it was not read."""

    @property
    def seen_sequence_number(self) -> int | None:
        """Sequence number of the head when the commit was requested. None: it was not read."""

    def step(self, name: str) -> None:
        """Mark a step of the change as done. Some implementations can stop the change here.

        Raises:
            Cancelled: The process received SIGTERM.
        """


def crash_point(name: str, run_id: str = "") -> None:
    """Fault injection for tests: with LETHE_CRASH_AT=<name> or <name>@<run id>, the process exits here as if it was killed."""
    if os.environ.get(CRASH_AT) in (name, f"{name}@{run_id}"):
        os._exit(KILLED)


def table_properties(context: Committer) -> dict[str, str]:
    """PyIceberg's properties to open files of the table, with the credentials that the catalog vends for it."""
    return vended.of_table(context.catalog_properties, context.table_name)


def table_io(context: Committer, location: str) -> FileIO:
    """What opens files of the table in Python.

    Args:
        location: Of the table.
    """
    return file_io(table_properties(context), location)


@dataclass(frozen=True)
class Run:
    """A run with a `run.json`."""

    spec: RunSpec
    reporter: Reports
    catalog_properties: Mapping[str, str]
    cancelled: threading.Event = field(default_factory=threading.Event)
    """Set after SIGTERM."""

    @property
    def table_name(self) -> str:
        """The name from the `run.json`, without the catalog: `namespace.table`."""
        return self.spec.table.name

    @property
    def batch_column(self) -> str:
        """The column of the Dataset that holds the id of a row's batch."""
        return self.spec.batch_column

    @property
    def run_id(self) -> str:
        """The id from the `run.json`, which all attempts of the run have in common."""
        return self.spec.run_id

    @property
    def run_kind(self) -> str:
        """The family of the run: Consolidation, Restatement or Vacuum."""
        return str(self.spec.family)

    @property
    def claim(self) -> str:
        """The claim of the run's Dataset, `<namespace>/<name>`. The run refuses a table with any other claim."""
        return self.spec.dataset.claim

    @property
    def accepts(self) -> AcceptedHead | None:
        """The head that a user accepted for a consolidation. None: there is none, or the run is of another kind."""
        return self.spec.consolidation.accepts if self.spec.consolidation else None

    @property
    def seen_table_uuid(self) -> str | None:
        """UUID of the table that the operator saw before the run. None: not checked."""
        return self.spec.seen_table_uuid

    @property
    def seen_snapshot_id(self) -> int | None:
        """Head that the operator saw before the run. None: not checked."""
        return self.spec.seen_snapshot_id

    @property
    def seen_sequence_number(self) -> int | None:
        """Sequence number of the head that the operator saw before the run. None: unknown."""
        return self.spec.seen_sequence_number

    def step(self, name: str) -> None:
        """Mark a step as done, and stop here if the run is cancelled.

        Raises:
            Cancelled: The process received SIGTERM.
        """
        crash_point(name, self.run_id)
        if self.cancelled.is_set():
            raise Cancelled


@dataclass(frozen=True)
class RunContext(Run):
    """A run in a Spark session."""

    reporter: Reporter
    spark: SparkSession = field(kw_only=True)


def digest_key() -> bytes:
    """The key of keyed digests; empty: this run has none."""
    return _read(os.environ.get(KEY_FILE_VARIABLE, ""))


def batch_ids_digest(batch_ids: Iterable[str]) -> str:
    """The keyed digest of the batch ids of an erasure, one id per line; empty without ids or without a key."""
    content = "\n".join(batch_ids).encode()
    return values_digest([content], digest_key()) if content else ""


def _read(path: str) -> bytes:
    """The content of a file; empty, if there is no path or the file cannot be read."""
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        return b""


@dataclass(frozen=True)
class RunInvocation:
    """One run to carry out."""

    run_file: Path
    environ: Mapping[str, str]
    """Says where the run's progress and result go."""


@dataclass(frozen=True)
class Scaling:
    """How a driver decides about its executors."""

    alone_cores: int
    """Threads of the driver when it works without executors."""
    wait_seconds: float
    """How long it waits for its first executor; then it works alone."""
    by_plan: bool = False
    """It plans the run alone, and then requests as many executors as the plan needs."""


@dataclass(frozen=True)
class Arguments:
    """How a driver carries out its runs."""

    confs: Mapping[str, str]
    """Spark settings."""
    scaling: Scaling | None = None
    """How the executors are chosen; None: the settings decide whether there are any, and nothing else does."""
    fresh: bool = False
    """Each run gets a new session, without the settings and views of earlier runs of the process."""


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> tuple[RunInvocation, Arguments]:
    """Parse `[--run FILE] [--conf k=v …] [--alone-cores N …]`. Exits with code 2 if they are wrong, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m lethe_spark.apps.app", description="Carry out a run: a consolidation, restatement or vacuum."
    )
    parser.add_argument("--run", metavar="FILE", help=f"a run.json (default: ${RUN_FILE}, {DEFAULT_RUN_FILE})")
    parser.add_argument("--conf", metavar="K=V", action="append", default=[], help="a Spark setting; may be repeated")
    parser.add_argument(
        "--alone-cores", metavar="N", type=int, help="the run may have executors; threads of the driver without them"
    )
    parser.add_argument(
        "--executor-wait",
        metavar="SECONDS",
        type=float,
        default=300.0,
        help="with --alone-cores: if no executor starts within this time, the driver works alone (default: 300)",
    )
    parser.add_argument(
        "--executors-by-plan",
        action="store_true",
        help="with --alone-cores: the number of executors follows from the plan of the run",
    )
    options = parser.parse_args(argv)
    pairs = [c.partition("=") for c in options.conf]
    for key, equals, _ in pairs:
        if not equals or not key.startswith("spark."):
            parser.error(f"--conf {key}: expected spark.<name>=<value>")
    run = RunInvocation(Path(options.run or environ.get(RUN_FILE) or DEFAULT_RUN_FILE), environ)
    scaling = None
    if options.alone_cores is not None:
        scaling = Scaling(options.alone_cores, options.executor_wait, options.executors_by_plan)
    return run, Arguments({k: v for k, _, v in pairs}, scaling)


def load_run(path: Path) -> RunSpec:
    """Load the run that a file contains or points to.

    Raises:
        InputError: RunFileMissing, InvalidRun, RunFileChanged.
        TransientError: VersionSkew.
        Exception: The errors of the storage.
    """
    try:
        text = path.read_text()
    except OSError as e:
        raise InputError("RunFileMissing", f"the run file {path} cannot be read ({e.strerror}).") from e
    return run_of(text, f"the run file {path}")


def identity_of(path: Path) -> RunIdentity | None:
    """Which run a file is for, also if the rest of it cannot be used; None: it does not say."""
    try:
        return RunIdentity.model_validate_json(_content(path.read_text()))
    except Exception as e:  # only the first error, why the run cannot be loaded, is of interest
        log.warning("%s does not identify its run: %s", path, type(e).__name__)
        return None


def run_of(text: str, where: str) -> RunSpec:
    """Load the run that a document contains or points to.

    Args:
        where: The name of the document in messages.

    Raises:
        InputError: InvalidRun, RunFileChanged.
        TransientError: VersionSkew.
        Exception: The errors of the storage.
    """
    try:
        spec = parse_run(_content(text))
    except ValidationError as e:
        if any(p["type"] in OF_NEWER_VERSION for p in e.errors(include_input=False, include_url=False)):
            raise _skew(where, _fields(e)) from e
        raise InputError("InvalidRun", f"{where}: {_fields(e)}") from e
    except JSONDecodeError as e:
        raise InputError("InvalidRun", f"{where} is not JSON.") from e
    if spec.api_version != CONTRACT_VERSION:
        raise _skew(where, f"apiVersion is {spec.api_version}, this image supports {CONTRACT_VERSION}")
    if not spec.is_complete:
        raise InputError(
            "InvalidRun", f"{where}: kind is {spec.family}, but the field {spec.family.lower()} is missing."
        )
    return spec


def _skew(where: str, found: str) -> TransientError:
    """The operator has another version than this image. Transient: a later attempt has the image of that time."""
    return TransientError(
        "VersionSkew",
        f"{where} is of another version of Lethe than this image, which has {version()}: {found}. Nothing was done. Set the "
        "chart's values image.operator and image.spark to the same release; then the run is tried again.",
    )


def _content(text: str) -> str:
    """The document itself, or what it points to.

    Raises:
        JSONDecodeError: The text is not JSON.
        ValidationError: The document is not valid.
        Exception: As `_fetch` does.
    """
    document = json.loads(text)
    if isinstance(document, dict) and is_pointer(document):
        return _fetch(RunPointer.model_validate_json(text))
    return text


def _fields(error: ValidationError) -> str:
    """The first wrong fields and what is expected of them. Never contains their values."""
    errors_found = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in errors_found[:5])


def _fetch(pointer: RunPointer) -> str:
    io = file_io(catalogs.properties(pointer.catalog), pointer.uri)
    with io.new_input(pointer.uri).open() as stream:
        content = bytes(stream.read())
    digest = hashlib.sha256(content).hexdigest()
    if digest != pointer.sha256:
        raise InputError(
            "RunFileChanged",
            f"{pointer.uri} has SHA-256 {digest}, expected {pointer.sha256}. Another writer has changed it "
            "after the operator wrote it.",
        )
    return content.decode()
