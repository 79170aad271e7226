"""The notebooks of the documentation run, and show what they showed when they were written."""

import json
from pathlib import Path

import pytest

from tests.support.notebooks import notebook_lake
from tests.support.scripts import load_script

SCRIPT = load_script("docs/run_notebooks.py")
FILES = sorted(SCRIPT.NOTEBOOKS.glob("*.ipynb"))


@pytest.mark.parametrize("file", FILES, ids=[f.stem for f in FILES])
def test_the_outputs_of_a_notebook_are_current(file: Path, tmp_path: Path) -> None:
    """Otherwise run `make docs-notebooks`."""
    with notebook_lake(tmp_path / "home"):
        found = SCRIPT.executed(json.loads(file.read_text()))

    assert file.read_text() == SCRIPT.written(found)
    assert all(cell["outputs"] for cell in found["cells"] if cell["cell_type"] == "code")


def test_a_cell_shows_what_it_prints_and_its_last_expression() -> None:
    names: dict[str, object] = {}

    assert list(SCRIPT.outputs_of("x = 1", names, 1)) == []
    assert list(SCRIPT.outputs_of("print('a')\nx + 1", names, 2)) == [
        {"name": "stdout", "output_type": "stream", "text": ["a\n"]},
        {"data": {"text/plain": ["2"]}, "execution_count": 2, "metadata": {}, "output_type": "execute_result"},
    ]
