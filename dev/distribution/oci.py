"""Write artifacts for registries as archives of an OCI layout, which dev/images.sh pushes.

The same contents always make the same archive, and so the same digest.
"""

import gzip
import hashlib
import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

MANIFEST = "application/vnd.oci.image.manifest.v1+json"
IMAGE_CONFIG = "application/vnd.oci.image.config.v1+json"
IMAGE_LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"


@dataclass(frozen=True)
class Blob:
    """The configuration or a layer of an artifact."""

    media_type: str
    content: bytes
    annotations: Mapping[str, str] = field(default_factory=dict)

    @property
    def digest(self) -> str:
        """The digest by which a registry finds it."""
        return f"sha256:{hashlib.sha256(self.content).hexdigest()}"

    @property
    def descriptor(self) -> dict[str, Any]:
        """What a manifest says about it."""
        found: dict[str, Any] = {"mediaType": self.media_type, "digest": self.digest, "size": len(self.content)}
        return found | ({"annotations": dict(self.annotations)} if self.annotations else {})


def write_artifact(target: Path, config: Blob, layers: Sequence[Blob], annotations: Mapping[str, str]) -> None:
    """Write an archive with one artifact."""
    manifest = {
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.descriptor,
        "layers": [layer.descriptor for layer in layers],
        "annotations": dict(annotations),
    }
    top = Blob(MANIFEST, json.dumps(manifest).encode())
    files = {
        "oci-layout": b'{"imageLayoutVersion": "1.0.0"}',
        "index.json": json.dumps({"schemaVersion": 2, "manifests": [top.descriptor]}).encode(),
    }
    for blob in (top, config, *layers):
        files[f"blobs/{blob.digest.replace(':', '/')}"] = blob.content
    target.write_bytes(tar_of(files))


def write_image(target: Path, files: Mapping[str, bytes], labels: Mapping[str, str], created: str) -> None:
    """Write an archive with an image of files alone, which is not run."""
    layer = tar_of(files)
    config = {
        "architecture": "amd64",
        "os": "linux",
        "created": created,
        "config": {"Labels": dict(labels)},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    write_artifact(
        target,
        Blob(IMAGE_CONFIG, json.dumps(config).encode()),
        [Blob(IMAGE_LAYER, gzip.compress(layer, mtime=0))],
        {},
    )


def tar_of(files: Mapping[str, bytes]) -> bytes:
    """A tar archive of files, without times and owners."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    return buffer.getvalue()
