"""Executes docs/notebooks/*.ipynb against a small table, and stores their outputs in them.

Run `make docs-notebooks` after a change of a cell, or of what it shows: a test fails until the outputs are current. No kernel is
needed: a cell is executed as IPython would, and its last expression is what it shows.
"""

import ast
import contextlib
import io
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOKS = ROOT / "docs/notebooks"


def executed(notebook: dict[str, Any]) -> dict[str, Any]:
    """The same notebook, with the outputs of its cells."""
    names: dict[str, Any] = {"__name__": "__main__"}
    number = 0
    cells = []
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            number += 1
            outputs = list(outputs_of("".join(cell["source"]), names, number))
            cell = {**cell, "execution_count": number, "outputs": outputs}
        cells.append(cell)
    return {**notebook, "cells": cells}


def outputs_of(source: str, names: dict[str, Any], number: int) -> Iterator[dict[str, Any]]:
    """What a cell prints, and what its last expression shows."""
    body = ast.parse(source).body
    last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
    printed, value = io.StringIO(), None
    with contextlib.redirect_stdout(printed):
        exec(compile(ast.Module(body, []), "cell", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "cell", "eval"), names)
    if printed.getvalue():
        yield {"name": "stdout", "output_type": "stream", "text": lines(printed.getvalue())}
    if value is not None:
        html = getattr(value, "_repr_html_", lambda: None)()
        shown = {"text/html": lines(html)} if html is not None else {}
        yield {
            "data": {**shown, "text/plain": lines(repr(value))},
            "execution_count": number,
            "metadata": {},
            "output_type": "execute_result",
        }


def lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)


def written(notebook: dict[str, Any]) -> str:
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> None:
    sys.path.insert(0, str(ROOT))
    from tests.support.notebooks import notebook_lake

    for file in sorted(NOTEBOOKS.glob("*.ipynb")):
        with tempfile.TemporaryDirectory() as folder, notebook_lake(Path(folder)):
            file.write_text(written(executed(json.loads(file.read_text()))))
        print(f"wrote {file}")


if __name__ == "__main__":
    main()
