"""SECURITY.md names a test for each promise, and each test that it names is there."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "SECURITY.md").read_text()
NAMED = re.findall(r"`(tests/\S+\.py)::(\w+)`", PAGE)


@pytest.mark.parametrize(("path", "name"), NAMED, ids=[name for _, name in NAMED])
def test_a_test_that_the_page_names_is_there(path: str, name: str) -> None:
    module = ast.parse((ROOT / path).read_text())

    assert name in {node.name for node in ast.walk(module) if isinstance(node, ast.FunctionDef)}


def test_each_promise_names_a_test() -> None:
    promises = PAGE.split("## What Lethe promises")[1].split("\n## ")[0]

    for promise in re.split(r"\n(?=- )", promises)[1:]:
        assert "::test_" in promise, f"no test is named for: {promise}"
