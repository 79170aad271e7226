"""The blocks of code in the documentation, and the commands in them. Pure, except for `pages`."""

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^( *)```(\w*) *(.*)$")
TITLE = re.compile(r'title="([^"]*)"')
HERE_DOCUMENT = re.compile(r"> *(\S+\.yaml) <<'?(\w+)'?\n(.*?)\n\2$", re.DOTALL | re.MULTILINE)
SHELLS = ("sh", "bash", "console")
BETWEEN = set(";&|()\n")  # what shlex groups into a word of its own between commands


@dataclass(frozen=True)
class Block:
    page: str  # its path in the repository
    line: int  # of its first line of code
    language: str
    title: str  # "": it has none
    text: str

    def __str__(self) -> str:
        return f"{self.page}:{self.line}"


def pages() -> list[str]:
    """The Markdown files that people read, as paths in the repository."""
    found = [
        *ROOT.glob("*.md"),
        *(ROOT / "docs").rglob("*.md"),
        *(ROOT / "helm").rglob("*.md"),
        *(ROOT / "examples").rglob("*.md"),
    ]
    return sorted(p.relative_to(ROOT).as_posix() for p in found)


def blocks_of(page: str, markdown: str) -> Iterator[Block]:
    """The fenced blocks of a page, without the indentation of a list that they are in."""
    lines = iter(enumerate(markdown.split("\n"), 1))
    for number, line in lines:
        if not (opening := FENCE.match(line)):
            continue
        indent, language, info = opening.groups()
        code = []
        for _, inner in lines:
            if inner.strip() == "```":
                break
            code.append(inner.removeprefix(indent))
        title = TITLE.search(info)
        yield Block(page, number + 1, language, title[1] if title else "", "\n".join(code) + "\n")


def all_blocks(*languages: str) -> list[Block]:
    return [b for p in pages() for b in blocks_of(p, (ROOT / p).read_text()) if b.language in languages]


def script(block: Block) -> str:
    """The commands of a block. In `console` those after `$ `, with the lines that they go on in; the rest is output."""
    if block.language != "console":
        return block.text
    commands: list[str] = []
    goes_on = False
    for line in block.text.split("\n"):
        if line.startswith("$ ") or goes_on:
            commands.append(line.removeprefix("$ "))
            goes_on = line.endswith("\\")
    return "\n".join(commands) + "\n"


def here_documents(text: str) -> Iterator[tuple[str, str]]:
    """YAML files that a script writes: name and content."""
    for match in HERE_DOCUMENT.finditer(text):
        yield match[1], match[3]


def commands(text: str) -> Iterator[list[str]]:
    """The words of each simple command of a script, without variables set before it, redirections, and what `$(…)` prints.

    Not a shell: it knows what documentation needs. `bash -n` checks the syntax.
    """
    text = HERE_DOCUMENT.sub("> file", text).replace("\\\n", " ")
    for line in text.split("\n"):
        lexer = shlex.shlex(line, posix=True, punctuation_chars=";&|()<>")
        lexer.whitespace_split = True
        words: list[str] = []
        skip = False
        for word in lexer:
            if set(word) <= BETWEEN:
                yield from _command(words)
                words = []
            elif set(word) <= {"<", ">", "&"}:
                skip = True
            elif skip:
                skip = False
            else:
                words.append(word)
        yield from _command(words)


def _command(words: list[str]) -> Iterator[list[str]]:
    while words and re.match(r"^\w+=", words[0]):
        words = words[1:]
    if words and words[0] in ("export", "exec", "time", "sudo", "!"):
        words = words[1:]
    if words:
        yield words
