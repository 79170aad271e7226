#!/usr/bin/env python3
"""Write one image of an OCI layout into an archive, byte for byte, so that its layers keep their digests.

oci_archive.py LAYOUT IMAGE ARCHIVE
"""

import io
import json
import pathlib
import sys
import tarfile

NAME = "org.opencontainers.image.ref.name"


def main() -> None:
    layout, image, archive = sys.argv[1:]
    root = pathlib.Path(layout)
    index = json.loads((root / "index.json").read_bytes())
    entry = next(e for e in index["manifests"] if e["annotations"][NAME] == image)
    manifest = json.loads(_blob(root, entry["digest"]).read_bytes())
    digests = [entry["digest"], manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]
    with tarfile.open(archive, "w") as tar:
        _add(tar, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(tar, "index.json", json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode())
        for digest in dict.fromkeys(digests):
            file = _blob(root, digest)
            tar.add(file, str(file.relative_to(root)), filter=_clean)


def _blob(root: pathlib.Path, digest: str) -> pathlib.Path:
    algorithm, _, name = digest.partition(":")
    return root / "blobs" / algorithm / name


def _add(tar: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    tar.addfile(member, io.BytesIO(content))


def _clean(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
