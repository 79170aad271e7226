"""What the scripts in dev/ need and shells of Linux and macOS have no common command for: portable.py COMMAND ARGUMENT...

    hash ROOT PATH...            12 hex digits that depend on names and contents of these files and folders below ROOT
    digest FILE [SHA256]         its SHA-256; with an expected one, an error unless it is equal
    wait-for-lock DESCRIPTOR     lock the open file of that number; the caller has the lock until it closes the file
    within SECONDS COMMAND...    run the command, and end it after that time with code 124
    version-fits LOW [HIGH]      whether the first version on standard input is in this range; 1.37 includes 1.37.9
    absolute PATH                the path without links and dots; nothing needs to be there
    follow PROCESS FILE          print what is written to a file until the process ends

It runs with any Python 3.8 or later, before there is a virtual environment.
"""

import fcntl
import hashlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path


def digest(path: Path) -> str:
    """The SHA-256 of a file, in hex digits."""
    found = hashlib.sha256()
    with path.open("rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            found.update(block)
    return found.hexdigest()


def files(path: Path) -> Iterator[Path]:
    """The regular files at or below a path without those that Python makes from others. Links are not followed.

    Raises: FileNotFoundError: nothing is there.
    """
    if not path.is_dir():
        path.lstat()
    found = [path] if not path.is_dir() else (Path(f, n) for f, _, names in os.walk(path) for n in names)
    for file in found:
        made = file.suffix == ".pyc" or any(p == "__pycache__" or p.endswith(".egg-info") for p in file.parts[:-1])
        if not made and file.is_file() and not file.is_symlink():
            yield file


def hash_of(root: Path, paths: list[str]) -> str:
    """12 hex digits of a SHA-256 over the sorted names and digests of all files: equal if and only if these are.

    Raises: FileNotFoundError: one of the paths does not exist.
    """
    os.chdir(root)
    found = sorted(str(file) for path in paths for file in files(Path(path)))
    lines = "".join(f"{digest(Path(name))}  {name}\n" for name in found)
    return hashlib.sha256(lines.encode()).hexdigest()[:12]


def version_fits(text: str, low: str, high: str = "") -> bool:
    """Whether the first version in a text lies in a range. A bound compares as many numbers as it has.

    A text without a version does not fit.
    """
    match = re.search(r"\d+\.\d+(\.\d+)?", text)
    if match is None:
        return False
    version = _numbers(match[0])
    return version >= _numbers(low) and (not high or version[: len(_numbers(high))] <= _numbers(high))


def _numbers(version: str) -> list[int]:
    return [int(number) for number in version.lstrip("v").split(".")]


def follow(process: int, file: Path) -> None:
    """Print what a file has and gets, until a process that writes to it has ended."""
    with file.open("rb") as written:
        running = True
        while running:
            running = _runs(process)  # before the last read, so that nothing is missed
            sys.stdout.buffer.write(written.read())
            sys.stdout.buffer.flush()
            if running:
                time.sleep(0.2)


def _runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    return True


def main(command: str, *arguments: str) -> int:
    """Run a command of this file's docstring; its exit code."""
    if command == "hash":
        print(hash_of(Path(arguments[0]), list(arguments[1:])))
    elif command == "digest":
        found = digest(Path(arguments[0]))
        if len(arguments) == 1:
            print(found)
        elif found != arguments[1]:
            print(
                f"error: {arguments[0]} has the SHA-256 {found}, not {arguments[1]}: remove it, and try again",
                file=sys.stderr,
            )
            return 1
    elif command == "wait-for-lock":
        fcntl.flock(int(arguments[0]), fcntl.LOCK_EX)
    elif command == "within":
        try:
            return subprocess.run(arguments[1:], timeout=float(arguments[0]), check=False).returncode
        except subprocess.TimeoutExpired:
            return 124
    elif command == "version-fits":
        return 0 if version_fits(sys.stdin.read(), *arguments) else 1
    elif command == "absolute":
        print(Path(arguments[0]).resolve())
    elif command == "follow":
        follow(int(arguments[0]), Path(arguments[1]))
    else:
        print(__doc__, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
