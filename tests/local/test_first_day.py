"""docs/first-day.md, as its script records it: every command ends as it did, with what it is repeated for."""

import sys
from pathlib import Path

import pytest

from tests.local.test_docs_blocks import write_command
from tests.support.scripts import load_script

RECORDER = load_script("docs/record_first_day.py")


@pytest.mark.long
def test_each_task_of_a_first_day_can_be_done(tmp_path: Path) -> None:
    """All but the installation: the commands are those of this checkout."""
    programs, home = tmp_path / "bin", tmp_path / "home"
    for made in (programs, home):
        made.mkdir()
    write_command(programs, "lethe")
    install, *others = RECORDER.TASKS
    with RECORDER.terminal_in(home, [programs, Path(sys.executable).parent]) as terminal:
        terminal.record(install.steps[-1])
        recorded = [[terminal.record(step) for step in task.steps] for task in others]

    text = RECORDER.page(others, recorded)
    assert all(task.title in text for task in others)
