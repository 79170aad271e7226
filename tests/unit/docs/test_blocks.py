"""What the documentation shows is what Lethe takes: manifests, values of the chart, and commands.

CONTRIBUTING.md says how a block shows which of them it is. `LETHE_COUNT_BLOCKS=1` prints how many there are of each.
"""

import ast
import copy
import inspect
import json
import os
import re
import subprocess
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import click
import jsonschema
import lethe
import lethe_spark
import pytest
import yaml
from lethe_local.admission import admitted, problems, unknown_fields
from lethe_local.api.objects import kinds

from tests.support.commands import lethes, parsed
from tests.support.documents import read_yaml
from tests.unit.docs.blocks import ROOT, SHELLS, Block, all_blocks, blocks_of, commands, here_documents, script

GROUP = "lethe.dev/"
DEFINITIONS = {k.definition.kind: k.definition for k in kinds() if k.definition is not None}
DEFAULTS = read_yaml(ROOT / "helm/lethe/values.yaml")
VALUES = json.loads((ROOT / "helm/lethe/values.schema.json").read_text())
DURATION = re.compile(r"^-?(\d+(\.\d+)?(ns|us|ms|s|m|h))+$|^0$")  # of Go
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
YAML_BLOCKS, SHELL_BLOCKS, PYTHON_BLOCKS = all_blocks("yaml"), all_blocks(*SHELLS), all_blocks("python")
# What the names in blocks of Python stand for.
NAMES = {"lethe": lethe, "lethe_spark": lethe_spark, "gateway": lethe.GatewayClient}
EXAMPLES = sorted(p.relative_to(ROOT).as_posix() for p in (ROOT / "examples").rglob("*.y*ml"))


def partial(schema: Any) -> Any:
    """A schema for a part of an object: nothing is required."""
    if isinstance(schema, list):
        return [partial(s) for s in schema]
    if not isinstance(schema, dict):
        return schema
    return {k: partial(v) for k, v in schema.items() if not (k == "required" and isinstance(v, list))}


def checked(document: Any, title: str = "") -> str:
    """What a document is; raises if it is wrong."""
    version = document.get("apiVersion") if isinstance(document, dict) else None
    if version is not None:
        if str(version).startswith(GROUP):
            admitted(DEFINITIONS[document["kind"]], copy.deepcopy(document))
            return f"a whole {document['kind']}"
        return "another object"
    if title and not title.endswith("values.yaml"):
        return "a titled file"
    assert isinstance(document, dict), 'give the block a title, such as title="kafka.yaml"'
    if document.get("kind") in DEFINITIONS:
        schema = partial(DEFINITIONS[document["kind"]].schema)
        assert (unknown_fields(schema, document), problems(schema, document)) == ([], [])
        return f"a part of a {document['kind']}"
    unknown = document.keys() - VALUES["properties"].keys()
    assert not unknown, f"neither an object with a kind, nor values of the chart, nor a block with a title: {unknown}"
    jsonschema.validate(merged(DEFAULTS, document), VALUES)
    return "values of the chart"


def merged(defaults: Any, given: Any) -> Any:
    """As Helm merges values: maps are merged, everything else is replaced."""
    if not isinstance(defaults, dict) or not isinstance(given, dict):
        return given
    return {**defaults, **{k: merged(defaults.get(k), v) for k, v in given.items()}}


@cache
def documents(block: Block) -> list[str]:
    return [checked(d, block.title) for d in yaml.safe_load_all(block.text)]


def durations(words: list[str]) -> Iterator[str]:
    for word, following in zip(words, [*words[1:], ""], strict=True):
        flag, _, value = word.partition("=")
        if flag in ("--timeout", "--duration", "--grace-period-duration"):
            yield value or following


@pytest.mark.parametrize("block", YAML_BLOCKS, ids=str)
def test_a_yaml_block_is_what_lethe_takes(block: Block) -> None:
    assert documents(block)


@pytest.mark.parametrize("path", EXAMPLES)
def test_an_example_is_what_lethe_takes(path: str) -> None:
    title = "" if path.endswith("values.yaml") else "a file"

    for document in yaml.safe_load_all((ROOT / path).read_text()):
        checked(document, title)


@pytest.mark.parametrize("block", SHELL_BLOCKS, ids=str)
def test_a_block_of_commands_can_be_parsed(block: Block) -> None:
    text = script(block)

    done = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    for words in commands(text):
        if ours := lethes(words):
            parsed(ours)
        elif words[0] == "make":
            assert {w for w in words[1:] if "=" not in w and not w.startswith("-")} <= TARGETS
        elif words[0] in ("kubectl", "helm"):
            assert [d for d in durations(words) if not DURATION.match(d)] == []
    for name, content in here_documents(text):
        for document in yaml.safe_load_all(content):
            checked(document, "" if "apiVersion" in document else name)


def calls(text: str) -> Iterator[tuple[str, str, ast.Call]]:
    """The calls of functions of Lethe's packages and of methods of a client, without those of what a call returns."""
    for node in ast.walk(ast.parse(re.sub(r"<[a-z ]+>", "0", text))):
        match node:
            case ast.Call(func=ast.Attribute(value=ast.Name(id=owner), attr=name)) if owner in NAMES:
                yield owner, name, node


@pytest.mark.parametrize("block", PYTHON_BLOCKS, ids=str)
def test_a_python_block_calls_what_there_is(block: Block) -> None:
    for owner, name, call in calls(block.text):
        given = [None] * (len(call.args) + (owner == "gateway"))
        inspect.signature(getattr(NAMES[owner], name)).bind(*given, **{str(k.arg): None for k in call.keywords})


def test_there_is_something_to_check(capsys: pytest.CaptureFixture[str]) -> None:
    """A change of the pages' form must not make the tests above empty."""
    found = Counter(kind for block in YAML_BLOCKS for kind in documents(block))
    ours = [words for block in SHELL_BLOCKS for words in commands(script(block)) if lethes(words)]

    assert len({name for block in PYTHON_BLOCKS for _, name, _ in calls(block.text)}) >= 12
    assert found["values of the chart"] >= 10
    assert sum(n for kind, n in found.items() if kind.startswith("a ")) >= 10
    assert len(ours) >= 30
    with capsys.disabled():
        if os.environ.get("LETHE_COUNT_BLOCKS"):
            print(
                dict(found),
                f"{len(EXAMPLES)} examples, {len(SHELL_BLOCKS)} blocks of commands, {len(ours)} commands of lethe",
            )


def test_blocks_within_lists_and_titles_are_found() -> None:
    page = (
        '- a\n  ```yaml title="x.yaml"\n  a:\n    b: 1\n  ```\n\n```console\n$ lethe status \\\n    -n air\nNAME\n```\n'
    )

    one, two = blocks_of("p.md", page)

    assert (one.title, one.text, one.line) == ("x.yaml", "a:\n  b: 1\n", 3)
    assert script(two) == "lethe status \\\n    -n air\n"


@pytest.mark.parametrize(
    "text",
    [
        "lethe stauts",
        "lethe undo",
        "kubectl lethe status --bad",
        "lethe revert flights b --evict-by-seconds soon",
    ],
)
def test_a_command_that_lethe_does_not_have_is_found(text: str) -> None:
    (words,) = commands(text)

    with pytest.raises(click.UsageError):
        parsed(lethes(words))


def test_a_field_that_no_resource_has_is_found() -> None:
    with pytest.raises(AssertionError):
        checked({"kind": "Dataset", "spec": {"bufer": {}}})
    with pytest.raises(AssertionError):
        checked({"spec": {}})
    with pytest.raises(jsonschema.ValidationError):
        checked({"replicas": "many"})


def test_the_commands_in_the_tables_of_troubleshooting_can_be_parsed() -> None:
    """They are what people copy in a hurry."""
    page = (ROOT / "docs/troubleshooting.md").read_text()
    found = [words for text in re.findall(r"`((?:kubectl )?lethe [^`]+)`", page) for words in commands(text)]

    assert len(found) >= 10
    for words in found:
        if lethes(words) and len(lethes(words)) > 2:  # more than the name of a command
            parsed(lethes(words))


def test_the_reasons_in_troubleshooting_exist() -> None:
    page = (ROOT / "docs/troubleshooting.md").read_text()
    code = [*(ROOT / "operator").rglob("*.py"), *(ROOT / "spark_apps").rglob("*.py"), *(ROOT / "crds").glob("*.yaml")]
    source = "\n".join(p.read_text() for p in code)
    named = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][A-Za-z]+)+)`", page)) - {"ImagePullBackOff"}

    assert [name for name in sorted(named) if name not in source] == []


@pytest.mark.parametrize("block", [b for b in all_blocks("json") if b.title], ids=str)
def test_a_titled_json_block_is_one(block: Block) -> None:
    json.loads(block.text)
