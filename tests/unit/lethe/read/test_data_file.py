"""Of a file of deletion vectors, those count that the manifests name: others were replaced, and stay in the file."""

import json

from lethe.read.data_file import _vectors
from pyiceberg.table.puffin import PuffinFile
from pyroaring import BitMap

FILE = "s3://lake/deletes.puffin"


def vector(*positions: int) -> bytes:
    """A blob: its length, a mark, one bitmap for the numbers up to 2^32, and a check sum."""
    content = (
        b"\xd1\xd3\x39\x64" + (1).to_bytes(8, "little") + (0).to_bytes(4, "little") + BitMap(positions).serialize()
    )
    return len(content).to_bytes(4, "big") + content + bytes(4)


def puffin(**vectors: bytes) -> tuple[PuffinFile, dict[str, int]]:
    """A file with these vectors, by their data file, and where each begins."""
    content, blobs, offsets = b"PFA1", [], {}
    for data_file, blob in vectors.items():
        offsets[data_file] = len(content)
        blobs.append(
            {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1}
            | {"offset": len(content), "length": len(blob), "properties": {"referenced-data-file": data_file}}
        )
        content += blob
    footer = json.dumps({"blobs": blobs}).encode()
    return PuffinFile(content + b"PFA1" + footer + len(footer).to_bytes(4, "little") + bytes(4) + b"PFA1"), offsets


def test_a_vector_that_no_manifest_names_hides_nothing() -> None:
    file, offsets = puffin(one=vector(0, 5), two=vector(1))

    found = _vectors(FILE, file, {("one", (FILE, offsets["one"])), ("two", ("s3://lake/other.puffin", 4))})

    assert {path: positions.tolist() for path, positions in found.items()} == {"one": [0, 5]}
