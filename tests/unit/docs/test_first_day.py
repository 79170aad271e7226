"""The recording of a first day shows the commands that its script runs, and fits a terminal."""

from tests.support.scripts import load_script
from tests.unit.docs.blocks import ROOT, blocks_of, script

PAGE = "docs/first-day.md"
RECORDER = load_script("docs/record_first_day.py")
BLOCKS = list(blocks_of(PAGE, (ROOT / PAGE).read_text()))


def test_the_page_shows_the_commands_of_the_script() -> None:
    """When this fails: python docs/record_first_day.py"""
    shown = "".join(script(b) for b in BLOCKS if b.language == "console").splitlines()
    steps = [step for task in RECORDER.TASKS for step in task.steps]

    assert [line for line in shown if line] == [s.command for s in steps if isinstance(s, RECORDER.Step)]
    assert [b.title for b in BLOCKS if b.title] == [s.name for s in steps if isinstance(s, RECORDER.File)]


def test_the_tables_fit_a_terminal_of_80_columns() -> None:
    """Sentences may be longer: the terminal breaks them. So may the path that `lethe local up` names."""
    lines = [line for b in BLOCKS if b.language == "console" for line in b.text.splitlines()]
    tables = [line for line in lines if not line.startswith(("$ ", "  catalog")) and "  " in line.strip()]

    assert len(tables) > 30
    assert [line for line in tables if len(line) > RECORDER.COLUMNS] == []
    assert len((ROOT / PAGE).read_text().splitlines()) <= 350
