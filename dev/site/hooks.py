"""Makes the Markdown files of the repository into the pages of the site.

They are written for GitHub. Here links between them, and to files that are no pages, become what the site needs, and notebooks
become pages. The functions that mkdocs calls are at the end and read files; the others are pure.
"""

import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[2]
DOCS = "docs"
LINK = re.compile(r"(?<=\]\()([^)\s#]+)(#[^)\s]*)?(?=\))")
ELSEWHERE = re.compile(r"^[a-z][a-z0-9+.-]*:|^#")  # https:, mailto:
FENCE = re.compile(r"^ *(```+|~~~+)")
ITEM = re.compile(r"^ *([-*+]|\d+\.) ")


def prose(markdown: str) -> Iterator[tuple[bool, str]]:
    """Each line, and whether it is outside of a block of code."""
    fence = ""
    for line in markdown.split("\n"):
        mark = FENCE.match(line)
        if mark and not fence:
            fence = mark[1]
            yield False, line
        elif mark and mark[1].startswith(fence) and line.strip() == mark[1]:
            fence = ""
            yield False, line
        else:
            yield not fence, line


def linked(markdown: str, target: Callable[[str], str]) -> str:
    """The same text, with each relative link replaced.

    Args:
        target: From the path of a link, as it is written and without its fragment, to the new one.
    """

    def one(match: re.Match[str]) -> str:
        return match[0] if ELSEWHERE.match(match[1]) else target(match[1]) + (match[2] or "")

    return "\n".join(LINK.sub(one, line) if is_prose else line for is_prose, line in prose(markdown))


def place(path: str, outside: Mapping[str, str]) -> str:
    """The address in the site of a file of the repository; empty if it is not there."""
    if path in outside:
        return outside[path]
    head, _, rest = path.partition("/")
    address = re.sub(r"\.ipynb$", ".md", rest)
    return address if head == DOCS and not rest.endswith((".py", ".json")) else ""


def resolved(link: str, page: str, outside: Mapping[str, str], exists: Callable[[str], str], repository: str) -> str:
    """What a link of a page becomes in the site.

    Args:
        link: A relative path.
        page: The path of the page in the repository.
        exists: From a path in the repository to `blob` (a file), `tree` (a folder) or "" (nothing).
        repository: The URL of the repository, up to `/blob` or `/tree`; `{kind}` stands for that.
    """
    path = os.path.normpath(str(PurePosixPath(page).parent / link))
    kind = exists(path)
    here = place(page, outside)
    there = place(path, outside)
    if there and kind != "tree":
        return os.path.relpath(there, str(PurePosixPath(here).parent))
    if kind:
        return f"{repository.format(kind=kind)}/{path}"
    return link  # mkdocs reports it


def indented(markdown: str) -> str:
    """The same lists, with an empty line before each and four spaces for each level, which GitHub does not need."""
    lines: list[str] = []
    levels: list[int] = []  # the columns at which the text of the enclosing items begins
    blank, after_item = True, False  # after_item: the block before belongs to an item's first line
    for is_prose, line in prose(markdown):
        text = line.lstrip(" ")
        column = len(line) - len(text)
        item = ITEM.match(line) if is_prose else None
        if text and (item or blank or not is_prose):  # any other line goes on with the text before it
            while levels and column < levels[-1]:
                levels.pop()
        if item and not blank and not after_item:
            lines.append("")
        inner = max(column - levels[-1], 0) if levels and not item else 0 if levels or item else column
        lines.append(" " * (4 * len(levels) + inner) + text if text else "")
        if item:
            levels.append(item.end())
        after_item = item is not None or (after_item and not blank)
        blank = not text
    return "\n".join(lines)


def notebook_page(notebook: Mapping[str, Any]) -> str:
    """The cells of a notebook with their outputs, as Markdown."""
    parts: list[str] = []
    for cell in notebook["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data") or {"text/plain": output["text"]}
            html = "".join(data.get("text/html", ()))
            # An empty line would end the block of HTML.
            shown = "\n".join(line.strip() for line in html.splitlines() if line.strip())
            parts.append(shown or "```text\n" + "".join(data["text/plain"]).rstrip() + "\n```")
    return "\n\n".join(parts) + "\n"


def _kind(path: str) -> str:
    file = ROOT / path
    return "tree" if file.is_dir() else "blob" if file.exists() else ""


def on_config(config: Any) -> Any:
    """A folder in the navigation stands for its pages: first README.md, then the others by name."""
    for entry in config.nav:
        for title, value in entry.items():
            if isinstance(value, str) and value.endswith("/"):
                pages = sorted((ROOT / DOCS / value).glob("*.md"), key=lambda p: (p.name != "README.md", p.name))
                entry[title] = [f"{value}{page.name}" for page in pages]
    return config


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File  # only the environment of the site has it

    for path, address in config.extra["outside"].items():
        files.append(File.generated(config, address, content=(ROOT / path).read_text()))
    for file in sorted((ROOT / DOCS).rglob("*.ipynb")):
        address = place(file.relative_to(ROOT).as_posix(), {})
        files.append(File.generated(config, address, content=notebook_page(json.loads(file.read_text()))))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    extra, address = config.extra, page.file.src_uri
    source = next((path for path, a in extra["outside"].items() if a == address), f"{DOCS}/{address}")
    repository = f"{extra['repository']}/{{kind}}/{extra['branch']}"
    text = linked(markdown, lambda link: resolved(link, source, extra["outside"], _kind, repository))
    return indented(text)
