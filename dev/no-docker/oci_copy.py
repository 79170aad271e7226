#!/usr/bin/env python3
"""Copy one image of an OCI layout, byte for byte, so that its layers keep their digests.

    oci_copy.py LAYOUT IMAGE TARGET

TARGET is an archive if its name ends in .tar, otherwise a folder: a layout with this image alone.
"""

import io
import json
import os
import pathlib
import sys
import tarfile

NAME = "org.opencontainers.image.ref.name"


def main() -> None:
    layout, image, target = sys.argv[1:]
    root = pathlib.Path(layout)
    index = json.loads((root / "index.json").read_bytes())
    entry = next(e for e in index["manifests"] if e["annotations"][NAME] == image)
    manifest = json.loads((root / _blob(entry["digest"])).read_bytes())
    digests = [entry["digest"], manifest["config"]["digest"], *(layer["digest"] for layer in manifest["layers"])]
    blobs = [_blob(digest) for digest in dict.fromkeys(digests)]
    texts = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [entry]}).encode(),
    }
    if target.endswith(".tar"):
        _archive(root, texts, blobs, target)
    else:
        _folder(root, texts, blobs, pathlib.Path(target))


def _archive(root: pathlib.Path, texts: dict[str, bytes], blobs: list[str], target: str) -> None:
    with tarfile.open(target, "w") as tar:
        for name, content in texts.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
        for blob in blobs:
            tar.add(root / blob, blob, filter=_clean)


def _folder(root: pathlib.Path, texts: dict[str, bytes], blobs: list[str], target: pathlib.Path) -> None:
    for blob in blobs:
        (target / blob).parent.mkdir(parents=True, exist_ok=True)
        os.link(root / blob, target / blob)
    for name, content in texts.items():
        (target / name).write_bytes(content)


def _blob(digest: str) -> str:
    algorithm, _, name = digest.partition(":")
    return f"blobs/{algorithm}/{name}"


def _clean(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


if __name__ == "__main__":
    main()
