"""Write an image of an OCI layout to standard output, as `docker load` reads it: docker_archive.py LAYOUT IMAGE"""

import io
import json
import sys
import tarfile
from pathlib import Path
from typing import Any

layout, image = Path(sys.argv[1]), sys.argv[2]


def blob(descriptor: dict[str, Any]) -> Path:
    return layout / "blobs" / descriptor["digest"].replace(":", "/")


NAME = "org.opencontainers.image.ref.name"
index = json.loads((layout / "index.json").read_text())
found = [one for one in index["manifests"] if one.get("annotations", {}).get(NAME) == image]
if not found:
    raise SystemExit(f"{layout} has no image {image}: run dev/images.sh build")
manifest = json.loads(blob(found[-1]).read_text())
layers = [blob(layer) for layer in manifest["layers"]]
written = {"Config": "config.json", "RepoTags": [image], "Layers": [f"{layer.name}.tar" for layer in layers]}
with tarfile.open(fileobj=sys.stdout.buffer, mode="w|") as archive:
    archive.add(blob(manifest["config"]), "config.json")
    for layer in dict.fromkeys(layers):
        archive.add(layer, f"{layer.name}.tar")
    content = json.dumps([written]).encode()
    member = tarfile.TarInfo("manifest.json")
    member.size = len(content)
    archive.addfile(member, io.BytesIO(content))
