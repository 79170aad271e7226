"""Stores documents of the run contract that are too large for a ConfigMap beside the table. I/O."""

import hashlib

from lethe.base.names import RUNS_FOLDER
from lethe.contract.run import RunPointer
from lethe.iceberg import catalogs
from lethe.storage.file_io import file_io


def folder(location: str) -> str:
    """The folder of the documents. `location`: of the table or, while there is no table, of the warehouse."""
    return f"{location.rstrip('/')}/{RUNS_FOLDER}"


def write(catalog: str, uri: str, text: str) -> str:
    """Write or overwrite a document. Returns its SHA-256.

    Raises:
        Exception: What the store raises.
    """
    content = text.encode()
    with file_io(catalogs.properties(catalog), uri).new_output(uri).create(overwrite=True) as stream:
        stream.write(content)
    return hashlib.sha256(content).hexdigest()


def read(pointer: RunPointer) -> bytes | None:
    """Read the document of a pointer; None: it is missing, or its SHA-256 differs.

    Raises:
        Exception: What the store raises.
    """
    io = file_io(catalogs.properties(pointer.catalog), pointer.uri)
    try:
        with io.new_input(pointer.uri).open() as stream:
            content = bytes(stream.read())
    except FileNotFoundError:
        return None
    return content if hashlib.sha256(content).hexdigest() == pointer.sha256 else None
