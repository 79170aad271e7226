#!/usr/bin/env python3
"""Fetch the jars of jars.txt into a folder, each checked against its SHA-256.

    fetch_jars.py DEST [--scope image|test]

Scope `image` (the default) contains the jars of the Spark image. Scope `test` adds the jars of runs outside a cluster and of
servers that tests start: jars of another scope, such as `rest`, go into a folder of that name in DEST, outside Spark's class
path. A jar that exists with the right checksum is not fetched again. Other versions of a jar are removed from DEST, because
Spark would load classes of both. MAVEN_REPO sets another repository, such as a mirror. SSL_CERT_FILE sets the CA bundle of a
TLS-inspecting proxy. Uses only the standard library, because it also runs during the build of the image.
"""

import argparse
import hashlib
import os
import pathlib
import shutil
import sys
import time
import urllib.error
import urllib.request

LIST = pathlib.Path(__file__).with_name("jars.txt")
ATTEMPTS = 4


def read_list(path: pathlib.Path, scope: str) -> list[tuple[str, str, str]]:
    """The jars of a scope: path in the repository, folder below DEST, SHA-256."""
    jars = []
    for line in path.read_text().splitlines():
        line = line.split("#")[0].strip()
        if not line:
            continue
        jar_scope, coordinates, sha256 = line.split()
        if jar_scope == "image" or scope == "test":
            group, artifact, version, *classifier = coordinates.split(":")
            name = "-".join([artifact, version, *classifier]) + ".jar"
            folder = "." if jar_scope in ("image", "test") else jar_scope
            jars.append((f"{group.replace('.', '/')}/{artifact}/{version}/{name}", folder, sha256))
    return jars


def sha256_of(path: pathlib.Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def download(url: str, target: pathlib.Path, sha256: str) -> None:
    """Fetch to a temporary name beside the target, and rename it only if it has the right checksum."""
    part = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        with urllib.request.urlopen(url, timeout=120) as answer, part.open("wb") as file:
            shutil.copyfileobj(answer, file, 1 << 20)
        got = sha256_of(part)
        if got != sha256:
            raise SystemExit(f"{url}: SHA-256 is {got}, {LIST.name} says {sha256}")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def fetch(path: str, sha256: str, dest: pathlib.Path, base: str) -> None:
    target = dest / path.rsplit("/", 1)[1]
    if target.exists() and sha256_of(target) == sha256:
        return
    url = f"{base}/{path}"
    print(f"fetching {target.name}", file=sys.stderr, flush=True)
    for attempt in range(1, ATTEMPTS + 1):
        try:
            download(url, target, sha256)
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if final or attempt == ATTEMPTS:
                raise SystemExit(f"{url}: {error}") from error
            time.sleep(2**attempt)


def remove_other_versions(dest: pathlib.Path, wanted: list[tuple[str, str, str]]) -> None:
    """Remove the jars of the wanted artifacts that have another version."""
    keep = {(folder, path.rsplit("/", 1)[1]) for path, folder, _ in wanted}
    for path, folder, _ in wanted:
        artifact = path.split("/")[-3]
        for jar in (dest / folder).glob(f"{artifact}-[0-9]*.jar"):
            if (folder, jar.name) not in keep:
                print(f"removing {jar.name}", file=sys.stderr, flush=True)
                jar.unlink()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("dest", type=pathlib.Path)
    parser.add_argument("--scope", choices=["image", "test"], default="image")
    arguments = parser.parse_args()
    base = os.environ.get("MAVEN_REPO", "https://repo1.maven.org/maven2").rstrip("/")
    wanted = read_list(LIST, arguments.scope)
    for path, folder, sha256 in wanted:
        dest = arguments.dest / folder
        dest.mkdir(parents=True, exist_ok=True)
        fetch(path, sha256, dest, base)
    remove_other_versions(arguments.dest, wanted)


if __name__ == "__main__":
    main()
