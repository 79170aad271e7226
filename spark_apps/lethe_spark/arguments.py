"""What a run is told: the command line, `run.json`, and the document it may point to. I/O: reads files.

Everything here that is wrong is the launcher's or the user's to change: InputError, named by field.
"""

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from lethe.errors import InputError
from lethe.run import CONTRACT_VERSION, RunPointer, RunSpec, is_pointer, parse_run
from lethe.table import catalogs
from pydantic import ValidationError
from pyiceberg.io import load_file_io

RUN_FILE: Final = "LETHE_RUN_FILE"
DEFAULT_RUN_FILE: Final = "/etc/lethe/run/run.json"


@dataclass(frozen=True)
class Arguments:
    run_file: Path
    confs: Mapping[str, str]


def parse(argv: Sequence[str], environ: Mapping[str, str]) -> Arguments:
    """`[--run FILE] [--conf k=v …]`. Exits with 2 on anything else, as argparse does."""
    parser = argparse.ArgumentParser(
        prog="python -m lethe_spark.app", description="Carry out one run: a consolidation, restatement or vacuum."
    )
    parser.add_argument("--run", metavar="FILE", help=f"the run.json (default: ${RUN_FILE}, {DEFAULT_RUN_FILE})")
    parser.add_argument("--conf", metavar="K=V", action="append", default=[], help="a Spark setting; may be repeated")
    known = parser.parse_args(argv)
    pairs = [c.partition("=") for c in known.conf]
    for key, equals, _ in pairs:
        if not equals or not key.startswith("spark."):
            parser.error(f"--conf {key}: expected spark.<name>=<value>")
    path = known.run or environ.get(RUN_FILE) or DEFAULT_RUN_FILE
    return Arguments(Path(path), {k: v for k, _, v in pairs})


def load_run(path: Path) -> RunSpec:
    """The run that a file holds or points to.

    Raises: InputError (RunFileMissing, InvalidRun, RunFileChanged); what the storage raises when it is away.
    """
    try:
        text = path.read_text()
    except OSError as e:
        raise InputError("RunFileMissing", f"the run file {path} cannot be read ({e.strerror}).") from e
    try:
        document = json.loads(text)
    except ValueError as e:
        raise InputError("InvalidRun", f"the run file {path} is not JSON.") from e
    try:
        if isinstance(document, dict) and is_pointer(document):
            text = _fetch(RunPointer.model_validate_json(text))
        spec = parse_run(text)
    except ValidationError as e:
        raise InputError("InvalidRun", f"{path}: {_fields(e)}") from e
    if spec.api_version != CONTRACT_VERSION:
        raise InputError(
            "InvalidRun",
            f"{path}: apiVersion is {spec.api_version}, this image speaks {CONTRACT_VERSION}; operator and Spark image "
            "must be of one release.",
        )
    if getattr(spec, spec.kind.lower()) is None:
        raise InputError("InvalidRun", f"{path}: kind is {spec.kind}, but the field {spec.kind.lower()} is missing.")
    return spec


def _fields(error: ValidationError) -> str:
    """The first fields that are wrong and what is expected of them; never their values."""
    found = error.errors(include_input=False, include_url=False)
    return "; ".join(f"{'.'.join(map(str, p['loc']))}: {p['msg']}" for p in found[:5])


def _fetch(pointer: RunPointer) -> str:
    io = load_file_io(dict(catalogs.properties(pointer.catalog)), pointer.uri)
    with io.new_input(pointer.uri).open() as stream:
        content = bytes(stream.read())
    found = hashlib.sha256(content).hexdigest()
    if found != pointer.sha256:
        raise InputError(
            "RunFileChanged",
            f"{pointer.uri} has SHA-256 {found}, expected {pointer.sha256}: it is not what the operator wrote.",
        )
    return content.decode()
