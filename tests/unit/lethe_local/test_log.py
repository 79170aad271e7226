"""The logs in the folder of `lethe local`."""

import os
import sys
from pathlib import Path

import pytest
from lethe.base.errors import InputError
from lethe.contract.result import BEGINNING
from lethe_local import node
from lethe_local.folder import WARM_DRIVER, Folder, lines_of, log_lines


def test_a_log_is_found_by_the_name_of_a_run_or_of_a_part(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    for name in ("parts/operator", "runs/revert-1-x", "runs/revert-1-y"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "log").write_text(name)
    os.utime(tmp_path / "runs/revert-1-x/log", (1, 1))

    assert list(lines_of(folder, "operator", 0, follow=False)) == ["parts/operator"]
    assert list(lines_of(folder, "revert-1", 0, follow=False)) == ["runs/revert-1-y"]
    with pytest.raises(InputError, match="has no log of revert-2"):
        list(lines_of(folder, "revert-2", 0, follow=False))


def test_a_run_without_a_process_of_its_own_is_found_in_the_logs_of_warm_drivers(tmp_path: Path) -> None:
    for name, line in (("older", "revert-2"), ("newer", "revert-1")):
        (tmp_path / "runs" / f"{WARM_DRIVER}-{name}").mkdir(parents=True)
        text = f"starting\nx: {BEGINNING}{line}\nit reads\nit commits\nx: {BEGINNING}other\n"
        (tmp_path / "runs" / f"{WARM_DRIVER}-{name}" / "log").write_text(text)

    assert list(lines_of(Folder(tmp_path), "revert-2", 0, follow=False))[1:] == ["it reads", "it commits"]
    assert list(lines_of(Folder(tmp_path), "revert-1", 1, follow=False)) == ["it commits"]


def test_only_the_last_lines_are_shown(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("".join(f"{n}\n" for n in range(5)))

    assert list(log_lines(tmp_path / "log", 2, follow=False)) == ["3", "4"]
    assert list(log_lines(tmp_path / "log", 0, follow=False)) == ["0", "1", "2", "3", "4"]


def test_following_ends_with_the_process_and_shows_its_last_line(tmp_path: Path) -> None:
    """The process writes its lines when it is asked to, half a line at a time."""
    os.mkfifo(tmp_path / "go")
    code = "print('begun', flush=True); open('go').read(); print('half', end='', flush=True); print(' and half')"
    running = node.start([sys.executable, "-c", code], dict(os.environ), tmp_path)
    lines = log_lines(tmp_path / "log", 10, follow=True)

    first = next(lines)
    (tmp_path / "go").write_text("")
    ended = running.process.wait(timeout=60)

    assert (first, ended, list(lines)) == ("begun", 0, ["half and half"])
