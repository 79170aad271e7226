"""docs/quickstart.md as a reader follows it: every command runs, and prints what the page says."""

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.servers.postgres import free_port

PAGE = Path(__file__).parents[2] / "docs" / "quickstart.md"
BLOCKS = re.compile(r"^```(sh|text)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
START = "lethe local up --gateway --gateway-port 8443\n"
TIMEOUT_SECONDS = 90


def blocks() -> list[tuple[str, str]]:
    """The commands of each block, and what the last of them prints; "": the page does not say."""
    found: list[tuple[str, str]] = []
    for kind, content in BLOCKS.findall(PAGE.read_text()):
        found = [*found, (content, "")] if kind == "sh" else [*found[:-1], (found[-1][0], content)]
    return found


class Shell:
    """A terminal in an empty folder, with a home of its own."""

    def __init__(self, folder: Path) -> None:
        commands, self._work, home = folder / "bin", folder / "work", folder / "home"
        for made in (commands, self._work, home):
            made.mkdir()
        (commands / "lethe").write_text(f'#!/bin/sh\nexec {sys.executable} -m lethe.cli "$@"\n')
        (commands / "lethe").chmod(0o755)
        kept = {k: v for k, v in os.environ.items() if k not in ("LETHE_LOCAL", "PYICEBERG_HOME", "KUBECONFIG")}
        self._environ = {**kept, "HOME": str(home), "PATH": f"{commands}:{os.environ['PATH']}"}
        self._exports = ""
        self._port = str(free_port())
        self._up: subprocess.Popen[str] | None = None

    def start(self, command: str) -> None:
        """Run it until `stop`. Returns when it says that it runs."""
        self._up = subprocess.Popen(
            ["bash", "-c", f"exec {self._with_port(command)}"],
            env=self._environ, cwd=self._work, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self._up.stdout is not None
        assert "Lethe runs in" in self._up.stdout.readline()

    def stop(self) -> None:
        if self._up is not None:
            self._up.terminate()
            assert self._up.wait(60) == 0

    def run(self, commands: str) -> str:
        """What the commands print, on both streams, with single spaces."""
        script = self._exports + self._with_port(commands)
        done = subprocess.run(
            ["bash", "-c", script], env=self._environ, cwd=self._work, stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        self._exports += "".join(f"{line}\n" for line in commands.splitlines() if line.startswith("export "))
        return "\n".join(" ".join(line.split()) for line in done.stdout.strip().splitlines())

    def _with_port(self, commands: str) -> str:
        return commands.replace("8443", self._port)


@pytest.fixture
def shell(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path)
    yield shell
    shell.stop()


@pytest.mark.long
def test_every_command_prints_what_the_page_says(shell: Shell) -> None:
    for commands, expected in blocks():
        if commands == START:
            shell.start(commands)
            continue
        *first, last = statements(commands)
        for command in first:
            printed = shell.run(command)
            assert "lethe: " not in printed or "so the columns of the files are not checked" in printed, printed
        wanted, ends = pattern(expected), time.monotonic() + TIMEOUT_SECONDS
        while not wanted.fullmatch(printed := shell.run(last)):
            assert time.monotonic() < ends, f"{last}\nprints\n{printed}\nthe page says\n{expected}"


def statements(commands: str) -> list[str]:
    """The commands of a block one by one: a here-document and a continued line are part of theirs."""
    found, ends = [""], ""
    for line in commands.splitlines():
        found[-1] += line + "\n"
        if not ends and line.endswith("<<EOF"):
            ends = "EOF"
        elif line == ends or not (ends or line.endswith("\\")):
            ends = ""
            found.append("")
    return found[:-1]


def pattern(expected: str) -> "re.Pattern[str]":
    """`…` stands for any characters of a line. Without expected lines everything is right."""
    lines = [".*".join(map(re.escape, " ".join(line.split()).split("…"))) for line in expected.splitlines()]
    return re.compile("\n".join(lines) if lines else r"(?s:.*)")
