"""The documentation site has all pages in its navigation, and links work on GitHub and in it. `make lint` builds it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.scripts import load_script

ROOT = Path(__file__).parents[3]
OUTSIDE = {"README.md": "overview.md", "helm/lethe/README.md": "chart.md"}


HOOKS = load_script("dev/site/hooks.py")


class Settings(yaml.SafeLoader):
    """Without the objects that only mkdocs can make."""


Settings.add_multi_constructor("", lambda *_: None)


def settings() -> dict[str, Any]:
    found: dict[str, Any] = yaml.load((ROOT / "mkdocs.yml").read_text(), Settings)
    return found


def addresses(nav: Any) -> Iterator[str]:
    if isinstance(nav, str):
        yield nav
    else:
        for value in nav.values() if isinstance(nav, dict) else nav:
            yield from addresses(value)


def test_every_page_is_in_the_navigation_and_everything_there_is_a_page() -> None:
    nav = list(addresses(settings()["nav"]))
    folders = tuple(a for a in nav if a.endswith("/"))
    pages = {p.relative_to(ROOT / "docs").as_posix() for p in (ROOT / "docs").rglob("*.md")}
    pages |= {p.relative_to(ROOT / "docs").with_suffix(".md").as_posix() for p in (ROOT / "docs").rglob("*.ipynb")}
    pages |= set(settings()["extra"]["outside"].values())

    assert len(nav) == len(set(nav))
    assert pages == {a for a in nav if a not in folders} | {p for p in pages if p.startswith(folders)}


def test_the_page_of_all_pages_names_each_page_of_the_first_level() -> None:
    index = (ROOT / "docs/README.md").read_text()
    pages = [p.name for p in (ROOT / "docs").glob("*.md") if p.name != "README.md"]

    assert [name for name in pages if f"({name}" not in index] == []


def test_a_notebook_becomes_a_page_with_its_outputs() -> None:
    code = {"cell_type": "code", "source": ["a = 1\n", "a"]}
    outputs = [
        {"output_type": "stream", "text": ["printed\n"]},
        {"output_type": "execute_result", "data": {"text/html": ["<div>\n", "\n", "  1</div>"], "text/plain": ["1"]}},
    ]

    page = HOOKS.notebook_page(
        {"cells": [{"cell_type": "markdown", "source": ["# Title"]}, {**code, "outputs": outputs}]}
    )

    assert page == "# Title\n\n```python\na = 1\na\n```\n\n```text\nprinted\n```\n\n<div>\n1</div>\n"


def kind(path: str) -> str:
    return {"docs/a.md": "blob", "docs/b/c.md": "blob", "README.md": "blob", "examples": "tree", "x.yaml": "blob"}.get(
        path, ""
    )


@pytest.mark.parametrize(
    ("page", "link", "becomes"),
    [
        ("docs/a.md", "b/c.md", "b/c.md"),
        ("docs/b/c.md", "../a.md", "../a.md"),
        ("docs/a.md", "../README.md", "overview.md"),
        ("docs/b/c.md", "../../README.md", "../overview.md"),
        ("README.md", "docs/b/c.md", "b/c.md"),
        ("docs/a.md", "../examples", "https://git/tree/main/examples"),
        ("docs/b/c.md", "../../x.yaml", "https://git/blob/main/x.yaml"),
        ("docs/a.md", "../gone.md", "../gone.md"),
    ],
)
def test_a_link_leads_to_the_same_file_in_the_site(page: str, link: str, becomes: str) -> None:
    """One that leads nowhere stays, so that the build reports it."""
    assert HOOKS.resolved(link, page, OUTSIDE, kind, "https://git/{kind}/main") == becomes


def test_only_relative_links_of_prose_are_replaced() -> None:
    text = "[a](a.md#b), [c](https://c), [d](#d)\n```python\nx[0](a.md)\n```\n![e](e.svg)"

    assert HOOKS.linked(text, lambda link: f"<{link}>") == (
        "[a](<a.md>#b), [c](https://c), [d](#d)\n```python\nx[0](a.md)\n```\n![e](<e.svg>)"
    )


def test_lists_have_the_form_that_pythons_markdown_needs() -> None:
    text = "Text:\n- a\n  goes on\n  - b\n\n  more of a\n- c\n\n```sh\n- d\n```\n1. e\n   ```sh\n     f\n   ```"

    assert HOOKS.indented(text) == (
        "Text:\n\n- a\n    goes on\n    - b\n\n    more of a\n\n- c\n\n```sh\n- d\n```\n\n1. e\n    ```sh\n      f\n    ```"
    )
