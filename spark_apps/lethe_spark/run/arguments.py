"""Reads the input of a run: the command line, `run.json`, and the document that it may point to. I/O: reads files.

Errors in the input are InputError and name the field, because the launcher or the user must correct it. An input of another
version of Lethe is a TransientError, because a later attempt may have another image.

Keyed digests of the values by which Erases name records. I/O: reads the mounted values and the mounted key.

The chart creates the Secret with the key, and the pods of the runs that need it mount this Secret.
"""

import argparse
import hashlib
import json
import logging
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from json import JSONDecodeError
from pathlib import Path
from typing import Final

from lethe.base.errors import InputError, TransientError
from lethe.contract.run import (
    CONTRACT_VERSION,
    RestatementRequest,
    RunIdentity,
    RunPointer,
    RunSpec,
    is_pointer,
    parse_run,
)
from lethe.iceberg import catalogs
from lethe.restatement.record import values_digest
from lethe.version import version
from pydantic import ValidationError
from pyiceberg.io import load_file_io

KEY_FILE_VARIABLE: Final = "LETHE_VALUES_DIGEST_KEY_FILE"


def with_digests(requests: Sequence[RestatementRequest]) -> tuple[RestatementRequest, ...]:
    """The requests, with the digest of the values of Erases by records; empty if the values or the key cannot be read."""
    key = _read(os.environ.get(KEY_FILE_VARIABLE, ""))
    return tuple(_digested(r, key) for r in requests)


def batch_ids_digest(batch_ids: Iterable[str]) -> str:
    """The keyed digest of the batch ids of an erasure, one id per line; empty without ids or without a key."""
    content = "\n".join(batch_ids).encode()
    return values_digest(content, _read(os.environ.get(KEY_FILE_VARIABLE, ""))) if content else ""


def _digested(request: RestatementRequest, key: bytes) -> RestatementRequest:
    if request.rows is None:
        return request
    content = _read(request.rows.values_file)
    digest = values_digest(content, key) if content else ""
    return request.model_copy(update={"rows": request.rows.model_copy(update={"values_digest": digest})})


def _read(path: str) -> bytes:
    """The content of a file; empty, if there is no path or the file cannot be read."""
    try:
        return Path(path).read_bytes() if path else b""
    except OSError:
        return b""


log = logging.getLogger(__name__)

RUN_FILE: Final = "LETHE_RUN_FILE"
DEFAULT_RUN_FILE: Final = "/etc/lethe/run/run.json"
# What pydantic finds in a document with a field, or a value of a closed set, that only another version of Lethe has.
OF_NEWER_VERSION: Final = frozenset({"extra_forbidden", "enum"})


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
    """None: the settings decide whether there are executors, and nothing else does."""
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
    known = parser.parse_args(argv)
    pairs = [c.partition("=") for c in known.conf]
    for key, equals, _ in pairs:
        if not equals or not key.startswith("spark."):
            parser.error(f"--conf {key}: expected spark.<name>=<value>")
    run = RunInvocation(Path(known.run or environ.get(RUN_FILE) or DEFAULT_RUN_FILE), environ)
    scaling = None
    if known.alone_cores is not None:
        scaling = Scaling(known.alone_cores, known.executor_wait, known.executors_by_plan)
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
    io = load_file_io(dict(catalogs.properties(pointer.catalog)), pointer.uri)
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
