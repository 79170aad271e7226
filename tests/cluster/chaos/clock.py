"""Pods whose clock is an hour off: a small library, which the dynamic loader loads first, answers the questions for the time.

The file /etc/ld.so.preload names it, because the entry point of the image drops LD_PRELOAD. Waits until a time of day are not
shifted, and neither are the times of files. I/O only.
"""

import base64
import shutil
import subprocess
from pathlib import Path
from typing import Final

from tests.cluster.kube import Cluster, Object

CONFIG_MAP: Final = "chaos-clock"
FOLDER: Final = "/mnt/clock"
PRELOAD: Final = "/etc/ld.so.preload"
OFFSETS: Final = {"ahead": 3600, "behind": -3600}  # seconds
SOURCE: Final = Path(__file__).parents[2] / "support/clock_offset.c"


def install_clocks(cluster: Cluster, home: Path) -> bool:
    """Compile the library for each offset, into a ConfigMap. Returns: whether this machine has a C compiler."""
    compiler = shutil.which("cc")
    if compiler is None:
        return False
    content = {}
    for name, seconds in OFFSETS.items():
        library = home / f"{name}.so"
        command = [
            compiler,
            "-shared",
            "-fPIC",
            "-O2",
            "-D_GNU_SOURCE",
            f"-DOFFSET={seconds}",
            "-o",
            str(library),
            str(SOURCE),
        ]
        subprocess.run(command, check=True, timeout=60)
        content[library.name] = library.read_bytes()
        content[name] = f"{FOLDER}/{library.name}\n".encode()
    encoded = {key: base64.b64encode(value).decode() for key, value in content.items()}
    named = {"name": CONFIG_MAP}
    cluster.apply({"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "binaryData": encoded})
    return True


def pod_spec(container: str, name: str) -> Object:
    """The part of a pod's spec that shifts the clock of a container by an offset of OFFSETS."""
    mounts = [
        {"name": CONFIG_MAP, "mountPath": FOLDER, "readOnly": True},
        {"name": CONFIG_MAP, "mountPath": PRELOAD, "subPath": name, "readOnly": True},
    ]
    volume = {"name": CONFIG_MAP, "configMap": {"name": CONFIG_MAP}}
    return {"volumes": [volume], "containers": [{"name": container, "volumeMounts": mounts}]}


def without_clock(container: str) -> Object:
    """The strategic merge patch of a pod's spec that removes what `pod_spec` adds."""
    mounts = [{"mountPath": path, "$patch": "delete"} for path in (FOLDER, PRELOAD)]
    volume = {"name": CONFIG_MAP, "$patch": "delete"}
    return {"volumes": [volume], "containers": [{"name": container, "volumeMounts": mounts}]}
