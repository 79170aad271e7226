"""Documents of the run contract that are too large for a ConfigMap: they lie beside the table. I/O."""

import hashlib

from pyiceberg.io import load_file_io

from lethe.base.names import RUNS_FOLDER
from lethe.contract.run import RunPointer
from lethe.iceberg import catalogs


def folder(location: str) -> str:
    """Where they lie, beside what is at this location: a table's, or a warehouse while there is no table."""
    return f"{location.rstrip('/')}/{RUNS_FOLDER}"


def write(catalog: str, uri: str, text: str) -> str:
    """Write a document, over an older one if there is one; its SHA-256. Raises whatever the store raises."""
    content = text.encode()
    with load_file_io(dict(catalogs.properties(catalog)), uri).new_output(uri).create(overwrite=True) as stream:
        stream.write(content)
    return hashlib.sha256(content).hexdigest()


def read(pointer: RunPointer) -> bytes | None:
    """What a pointer names; None when it is gone, or is not what the pointer was made for. Raises what the store raises."""
    io = load_file_io(dict(catalogs.properties(pointer.catalog)), pointer.uri)
    try:
        with io.new_input(pointer.uri).open() as stream:
            content = bytes(stream.read())
    except FileNotFoundError:
        return None
    return content if hashlib.sha256(content).hexdigest() == pointer.sha256 else None
