"""The volumes of a pod as files in a folder, and what its paths become. Pure, apart from writing the files."""

import base64
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

Json = Mapping[str, Any]
# Finds an object of the namespace by kind and name; None: it does not exist.
Find = Callable[[str, str], Json | None]


class VolumeMissing(Exception):
    """An object that a volume names does not exist."""


def mounted(pod: Json, folder: Path, find: Find) -> dict[str, str]:
    """Write the volumes of a pod's container below a folder.

    Returns: the folder of each mount path.
    Raises: VolumeMissing, OSError.
    """
    spec = pod["spec"]
    by_name = {v["name"]: v for v in spec.get("volumes") or ()}
    places = {m["mountPath"]: str(folder / m["name"]) for m in spec["containers"][0].get("volumeMounts") or ()}
    for mount in spec["containers"][0].get("volumeMounts") or ():
        place = Path(places[mount["mountPath"]])
        place.mkdir(parents=True, exist_ok=True, mode=0o700)
        for name, content in _files(by_name[mount["name"]], find):
            path = place / name
            path.touch(mode=0o600)
            path.write_bytes(_in_folder(content, places))
    return places


def translated(text: str, places: Mapping[str, str]) -> str:
    """A text in which paths below mount paths are those of the folders. `/tmp` stays: the process gets TMPDIR."""
    mounts = sorted((m for m in places if m != "/tmp"), key=len, reverse=True)
    pattern = rf"(?<![\w/.-])({'|'.join(map(re.escape, mounts))})(?=/|$)"
    return re.sub(pattern, lambda found: places[found[1]], text) if mounts else text


def _in_folder(content: bytes, places: Mapping[str, str]) -> bytes:
    try:
        return translated(content.decode(), places).encode()
    except UnicodeDecodeError:
        return content


def _files(volume: Json, find: Find) -> Iterator[tuple[str, bytes]]:
    for source in (volume.get("projected") or {}).get("sources") or (volume,):
        for field, kind, name_field in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
            of = source.get(field)
            if of is None:
                continue
            name = of.get(name_field) or of["name"]
            found = find(kind, name)
            if found is None:
                if of.get("optional"):
                    continue
                raise VolumeMissing(f'{kind.lower()} "{name}" not found')
            yield from _keys(of, found, f"{kind} {name}")


def _keys(source: Json, found: Json, where: str) -> Iterator[tuple[str, bytes]]:
    data = {k: v.encode() for k, v in (found.get("stringData") or {}).items()}
    if found["kind"] == "Secret":
        data |= {k: base64.b64decode(v) for k, v in (found.get("data") or {}).items()}
    else:
        data |= {k: v.encode() for k, v in (found.get("data") or {}).items()}
        data |= {k: base64.b64decode(v) for k, v in (found.get("binaryData") or {}).items()}
    items = source.get("items")
    for key, path in [(i["key"], i["path"]) for i in items] if items else [(k, k) for k in data]:
        if key in data:
            yield path, data[key]
        elif not source.get("optional"):
            raise VolumeMissing(f"{where} has no key {key}")
