"""Servers that tests run as processes of their own: begun, waited for until they answer, and ended."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyspark
from botocore.exceptions import BotoCoreError

SECONDS = 60
SHORT_LIVED = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC")
"""Options of a JVM that ends before its second compiler could pay off."""
AWAY = (OSError, BotoCoreError)  # what clients raise of a server that does not listen yet


@contextmanager
def running(
    name: str,
    command: Sequence[str],
    folder: Path,
    ask: Callable[[], object],
    environment: Mapping[str, str] | None = None,
) -> Iterator[None]:
    """A server for as long as the block lasts. It is up as soon as `ask` raises nothing; what it says is in `log`, below
    the folder that it runs in."""
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment, cwd=folder, stdout=output, stderr=subprocess.STDOUT)
    try:
        until = time.monotonic() + SECONDS
        while True:
            # A server of somebody else's on its port would answer, too.
            assert process.poll() is None, f"{name} ended with {process.returncode}:\n{log.read_text()[-3000:]}"
            if _answers(ask):
                break
            assert time.monotonic() < until, f"{name} did not answer within {SECONDS} s:\n{log.read_text()[-3000:]}"
            time.sleep(0.1)
        yield
    finally:
        process.terminate()
        process.wait(timeout=30)


def class_path(own: str, *of_pyspark: str, shared: str = "") -> str:
    """Jars of a server in Java.

    Args:
        own: The folder below $LETHE_JARS that has all of its own.
        of_pyspark: How the names of those begin that it needs beside, out of what PySpark brings along.
        shared: A pattern of those that lie in $LETHE_JARS itself.
    """
    jars = Path(os.environ.get("LETHE_JARS", "~/.cache/lethe/jars")).expanduser()
    found = sorted((jars / own).glob("*.jar"))
    assert found, f"no jars in {jars}/{own}: run `make jars`"
    if shared:
        found += sorted(jars.glob(shared))
    bundled = Path(pyspark.__file__).parent / "jars"
    for name in of_pyspark:
        found += sorted(bundled.glob(f"{name}*.jar"))
    return os.pathsep.join(map(str, found))


def _answers(ask: Callable[[], object]) -> bool:
    try:
        ask()
    except AWAY:
        return False
    return True
