#!/usr/bin/env python3
"""Make an image of an OCI layout's base image and the last stage of a Dockerfile, in well under a second.

    app_layer.py LAYOUT BASE_IMAGE NEW_IMAGE DOCKERFILE CONTEXT [LABEL=VALUE...]

Builders recompress every layer of an image whenever they write it out, which for the Spark image is most of a code change's
cost. The last stage of Lethe's Dockerfiles only COPYs folders onto a finished base, so here it becomes one more layer in
the layout, and the new image is listed in its index beside the base and a few older ones. Any other instruction in that
stage is refused.
"""

import hashlib
import io
import json
import os
import pathlib
import sys
import tarfile

KEEP = 8


def last_stage(dockerfile: pathlib.Path) -> list[tuple[str, str]]:
    """The (source, target) pairs of the COPY lines after the last FROM."""
    lines = [line.split() for line in dockerfile.read_text().splitlines() if line.strip() and line[0] != "#"]
    start = max(number for number, line in enumerate(lines) if line[0] == "FROM")
    for line in lines[start + 1 :]:
        if line[0] != "COPY" or len(line) != 3 or line[1].startswith("--"):
            raise SystemExit(f"{dockerfile}: the last stage may hold only COPY SOURCE TARGET, not: {' '.join(line)}")
    return [(line[1], line[2]) for line in lines[start + 1 :]]


def layer_of(copies: list[tuple[str, str]], context: pathlib.Path) -> bytes:
    """An uncompressed layer, the same bytes for the same content."""

    def clean(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        if "__pycache__" in member.name or member.name.endswith(".pyc"):
            return None
        member.uid = member.gid = member.mtime = 0
        member.uname = member.gname = ""
        member.mode = 0o755 if member.isdir() or member.mode & 0o100 else 0o644
        return member

    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for source, target in copies:
            tar.add(context / source, target.lstrip("/"), filter=clean)
    return buffer.getvalue()


def main() -> None:
    layout, base, new, dockerfile, context, *labels = sys.argv[1:]
    blobs = pathlib.Path(layout) / "blobs" / "sha256"
    index_file = pathlib.Path(layout) / "index.json"

    def get(descriptor: dict) -> dict:
        return json.loads((blobs / descriptor["digest"].removeprefix("sha256:")).read_bytes())

    def put(data: bytes, **descriptor: object) -> dict:
        digest = hashlib.sha256(data).hexdigest()
        write(blobs / digest, data)
        return {**descriptor, "digest": f"sha256:{digest}", "size": len(data)}

    def write(path: pathlib.Path, data: bytes) -> None:
        part = path.with_name(f".{path.name}.{os.getpid()}")
        part.write_bytes(data)
        os.replace(part, path)

    name = "org.opencontainers.image.ref.name"
    index = json.loads(index_file.read_bytes())
    manifest = get(next(entry for entry in index["manifests"] if entry["annotations"][name] == base))
    config = get(manifest["config"])

    layer = put(
        layer_of(last_stage(pathlib.Path(dockerfile)), pathlib.Path(context)),
        mediaType="application/vnd.oci.image.layer.v1.tar",
    )
    config["rootfs"]["diff_ids"].append(layer["digest"])
    config.setdefault("history", []).append({"created_by": f"COPY of {dockerfile}"})
    if labels:
        config["config"].setdefault("Labels", {}).update(dict(label.split("=", 1) for label in labels))
    manifest["layers"].append(layer)
    manifest["config"] = put(json.dumps(config).encode(), mediaType="application/vnd.oci.image.config.v1+json")
    entry = put(
        json.dumps(manifest).encode(),
        mediaType="application/vnd.oci.image.manifest.v1+json",
        annotations={name: new},
    )
    bases = [other for other in index["manifests"] if other["annotations"][name] == base]
    older = [other for other in index["manifests"] if other["annotations"][name] not in (base, new)]
    write(index_file, json.dumps({"schemaVersion": 2, "manifests": [*bases, *older[-KEEP:], entry]}).encode())


if __name__ == "__main__":
    main()
