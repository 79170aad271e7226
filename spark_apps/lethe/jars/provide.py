"""Provide the jars of runs outside the image, from a folder of the user or a cache that is filled once. I/O: files, network."""

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

from lethe.base.errors import InputError, TransientError
from lethe.jars import download
from lethe.jars.download import Jar, JarScope, listed

FOLDER_ENV: Final = "LETHE_JARS"
"""The variable with a folder that has all jars of scope `local`."""
CACHE_ENV: Final = "XDG_CACHE_HOME"


def cache(environ: Mapping[str, str]) -> Path:
    """The folder that `provide` fills, unless the user names another one."""
    return Path(environ.get(CACHE_ENV) or "~/.cache").expanduser() / "lethe" / "jars"


def folder_of(environ: Mapping[str, str]) -> Path:
    """The folder of the jars, whether or not it has them."""
    named = environ.get(FOLDER_ENV)
    return Path(named).expanduser() if named else cache(environ)


def provide(environ: Mapping[str, str]) -> Path:
    """The folder with the jars of scope `local`. Missing ones are downloaded into the cache, with a progress bar on stderr.

    Raises:
        InputError: `JarsMissing`, if the folder that the user names lacks jars.
        TransientError: `JarsNotDownloaded`.
    """
    folder, jars = folder_of(environ), listed(JarScope.LOCAL)
    absent = download.missing(jars, folder)
    if absent and environ.get(FOLDER_ENV):
        raise InputError(
            "JarsMissing",
            f"{FOLDER_ENV} names the folder {folder}, which lacks {', '.join(j.name for j in absent)}. Put them there, or unset "
            f"{FOLDER_ENV}: Lethe then downloads its jars into {cache(environ)}.",
        )
    if absent:
        fetch(absent, folder, download.repository(environ))
        download.remove_other_versions(jars, folder)
    return folder


def fetch(jars: Sequence[Jar], folder: Path, base: str) -> None:
    """Download jars into a folder, with a progress bar on stderr.

    Raises:
        TransientError: `JarsNotDownloaded`.
    """
    try:
        with _bars() as show:
            download.download(jars, folder, base, show)
    except (download.DownloadFailed, OSError) as error:
        files = "; ".join(f"{base}/{jar.path} (SHA-256 {jar.sha256})" for jar in download.missing(jars, folder))
        raise TransientError(
            "JarsNotDownloaded",
            f"Spark needs jars that cannot be downloaded: {error}. Try again, set {download.REPOSITORY_ENV} to a mirror of Maven "
            f"Central, or put these files into {folder}: {files}",
        ) from None


@contextmanager
def _bars() -> Iterator[Callable[[download.DownloadProgress], None]]:
    """Shows downloads: a bar for each jar in a terminal, otherwise a line."""
    console = Console(file=sys.stderr)
    if not console.is_terminal:
        yield _print_start
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=console) as bars:
        tasks = {}

        def show(state: download.DownloadProgress) -> None:
            name = state.jar.name
            if name not in tasks:
                tasks[name] = bars.add_task(name, total=state.total_bytes)
            bars.update(tasks[name], completed=state.bytes, total=state.total_bytes)

        yield show


def _print_start(state: download.DownloadProgress) -> None:
    if state.bytes == 0:
        size = f" ({state.total_bytes / 1e6:.0f} MB)" if state.total_bytes else ""
        print(f"downloading {state.jar.name}{size}", file=sys.stderr, flush=True)
