"""The list of jars that PySpark does not contain. Only the standard library: it also runs in the build of the image."""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

LIST: Final = Path(__file__).with_name("jars.txt")


class Scope(StrEnum):
    IMAGE = "image"  # the jars of the Spark image
    LOCAL = "local"  # also the jars of runs outside a cluster
    TEST = "test"  # also those of servers that tests start
    BENCH = "bench"  # also those of programs that Lethe is compared with


# Folders of jars that only benchmarks need.
_RIVALS: Final = frozenset({"connect"})


@dataclass(frozen=True)
class Jar:
    """One jar of the list."""

    path: str  # in a Maven repository
    folder: str  # below the folder of jars; ".": that folder itself, which is in Spark's class path
    sha256: str

    @property
    def name(self) -> str:
        return self.path.rsplit("/", 1)[1]

    @property
    def artifact(self) -> str:
        """The name without the version."""
        return self.path.split("/")[-3]

    def file(self, jars: Path) -> Path:
        """Where the jar is in a folder of jars."""
        return jars / self.folder / self.name


def listed(scope: Scope, path: Path = LIST) -> tuple[Jar, ...]:
    """The jars of a scope. A jar that only tests or benchmarks have, such as one of `rest`, goes into a folder of that name."""
    return tuple(_jars(path.read_text().splitlines(), scope))


def _jars(lines: Iterable[str], scope: Scope) -> Iterable[Jar]:
    for line in lines:
        text = line.split("#")[0].strip()
        if not text:
            continue
        where, coordinates, sha256 = text.split()
        in_class_path = where in (Scope.IMAGE, Scope.LOCAL)
        if not in_class_path and scope is not Scope.BENCH and (scope is not Scope.TEST or where in _RIVALS):
            continue
        if scope is Scope.IMAGE and where != Scope.IMAGE:
            continue
        group, artifact, version, *classifier = coordinates.split(":")
        name = "-".join([artifact, version, *classifier]) + ".jar"
        yield Jar(f"{group.replace('.', '/')}/{artifact}/{version}/{name}", "." if in_class_path else where, sha256)
