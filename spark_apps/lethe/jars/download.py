"""The list of the jars that PySpark does not contain, and their download, each checked against its SHA-256. I/O: the network.

Only the standard library, because it also runs during the build of the image.
"""

import hashlib
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("jars.txt")

_RARE: Final = frozenset({"connect", "rest-1.8", "rest-1.10"})
"""Folders of jars that only benchmarks and long tests need."""

REPOSITORY_ENV: Final = "MAVEN_REPO"
"""The variable with the URL of another Maven repository, such as a mirror."""
REPOSITORY: Final = "https://repo1.maven.org/maven2"
ATTEMPTS: Final = 4
CHUNK_BYTES: Final = 1 << 20


class JarScope(StrEnum):
    """For what jars are needed. Each scope contains the jars of the scopes before it."""

    IMAGE = "image"
    """The jars of the Spark image."""
    LOCAL = "local"
    """Also the jars of runs outside a cluster."""
    TEST = "test"
    """Also those of servers that tests start."""
    BENCH = "bench"
    """Also those of programs that Lethe is compared with, and of older servers."""


class Store(StrEnum):
    """A cloud whose client libraries are not in the Spark image."""

    GCS = "gcs"
    AZURE = "azure"


@dataclass(frozen=True)
class Jar:
    """One jar of the list."""

    path: str
    """In a Maven repository."""
    folder: str
    """Below the folder of jars; ".": that folder itself, which is in Spark's class path."""
    sha256: str
    prefix: str = ""
    """Before its file name."""

    @property
    def name(self) -> str:
        """The file name, with the version."""
        return self.prefix + self.path.rsplit("/", 1)[1]

    @property
    def artifact(self) -> str:
        """The name without the version."""
        return self.path.split("/")[-3]

    def file(self, jars: Path) -> Path:
        """Where the jar is in a folder of jars."""
        return jars / self.folder / self.name


def listed(scope: JarScope, path: Path = LIST) -> tuple[Jar, ...]:
    """The jars of a scope. A jar that only tests or benchmarks have, such as one of `rest`, goes into a folder of that name."""
    return tuple(_jars(path.read_text().splitlines(), scope))


def of_store(store: Store, path: Path = LIST) -> tuple[Jar, ...]:
    """The jars for tables in a cloud. Spark reads class paths by name, and the names of these come after all others."""
    lines = _entries(path.read_text().splitlines())
    return tuple(Jar(_path(jar), ".", sha256, "zz-") for where, jar, sha256 in lines if where == store)


def _entries(lines: Iterable[str]) -> Iterable[list[str]]:
    """Scope, coordinates and checksum of each jar of the list."""
    return (text.split() for line in lines if (text := line.split("#")[0].strip()))


def _path(coordinates: str) -> str:
    group, artifact, version, *classifier = coordinates.split(":")
    name = "-".join([artifact, version, *classifier]) + ".jar"
    return f"{group.replace('.', '/')}/{artifact}/{version}/{name}"


def _jars(lines: Iterable[str], scope: JarScope) -> Iterable[Jar]:
    for where, coordinates, sha256 in _entries(lines):
        in_class_path = where in (JarScope.IMAGE, JarScope.LOCAL)
        if not in_class_path and scope is not JarScope.BENCH and (scope is not JarScope.TEST or where in _RARE):
            continue
        if scope is JarScope.IMAGE and where != JarScope.IMAGE:
            continue
        yield Jar(_path(coordinates), "." if in_class_path else where, sha256)


class DownloadFailed(Exception):
    """A jar cannot be downloaded, or it is not the listed one. The message names its URL and says why."""


@dataclass(frozen=True)
class DownloadProgress:
    """The state of a download."""

    jar: Jar
    bytes: int
    """Downloaded so far."""
    total_bytes: int | None
    """The size of the jar; None: the server does not say."""


def repository(environ: Mapping[str, str]) -> str:
    """The URL of the Maven repository, without a slash at its end."""
    return (environ.get(REPOSITORY_ENV) or REPOSITORY).rstrip("/")


def missing(jars: Sequence[Jar], folder: Path) -> tuple[Jar, ...]:
    """The jars that are not in a folder. A jar gets its name only once its checksum is right, so the name is enough."""
    return tuple(jar for jar in jars if not jar.file(folder).exists())


def wrong(jars: Sequence[Jar], folder: Path) -> tuple[Jar, ...]:
    """The jars that are not in a folder, or have another checksum there."""
    absent = missing(jars, folder)
    return tuple(jar for jar in jars if jar in absent or sha256_of(jar.file(folder)) != jar.sha256)


def download(
    jars: Sequence[Jar], folder: Path, base: str, on_progress: Callable[[DownloadProgress], None] = lambda _: None
) -> None:
    """Download jars into a folder. Several processes may do so at once.

    Args:
        base: As returned by `repository`.

    Raises:
        DownloadFailed: A jar cannot be downloaded, or it is not the listed one.
        OSError: The folder cannot be written.
    """
    for jar in jars:
        jar.file(folder).parent.mkdir(parents=True, exist_ok=True)
        _download_one(jar, folder, base, on_progress)


def _download_one(jar: Jar, folder: Path, base: str, on_progress: Callable[[DownloadProgress], None]) -> None:
    url = f"{base}/{jar.path}"
    for attempt in range(1, ATTEMPTS + 1):
        try:
            _attempt(url, jar, folder, on_progress)
            return
        except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
            final = isinstance(error, urllib.error.HTTPError) and error.code < 500 and error.code != 429
            if final or attempt == ATTEMPTS:
                raise DownloadFailed(f"{url}: {error}") from error
            time.sleep(2**attempt)


def _attempt(url: str, jar: Jar, folder: Path, on_progress: Callable[[DownloadProgress], None]) -> None:
    """Download to a temporary name beside the target, and rename it only if it has the right checksum."""
    target = jar.file(folder)
    part = target.with_name(f".{target.name}.{os.getpid()}")
    digest, done = hashlib.sha256(), 0
    try:
        with urllib.request.urlopen(url, timeout=120) as answer, part.open("wb") as file:
            length = answer.headers.get("Content-Length")
            total = int(length) if length else None
            on_progress(DownloadProgress(jar, 0, total))
            while chunk := answer.read(CHUNK_BYTES):
                file.write(chunk)
                digest.update(chunk)
                done += len(chunk)
                on_progress(DownloadProgress(jar, done, total))
        if digest.hexdigest() != jar.sha256:
            raise DownloadFailed(f"{url}: SHA-256 is {digest.hexdigest()}, {LIST.name} says {jar.sha256}")
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)


def remove_other_versions(jars: Sequence[Jar], folder: Path) -> tuple[Path, ...]:
    """Remove the jars that are another version of a listed one: Spark would load classes of both. Return them."""
    keep = {jar.file(folder) for jar in jars}
    others = {p for jar in jars for p in (folder / jar.folder).glob(f"{jar.prefix}{jar.artifact}-[0-9]*.jar")} - keep
    for path in others:
        path.unlink(missing_ok=True)
    return tuple(sorted(others))


def sha256_of(path: Path) -> str:
    """The checksum in hex. Reads the whole file, in parts.

    Raises:
        OSError: The file does not exist or cannot be read.
    """
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
