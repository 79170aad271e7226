"""tests/promises.yaml has every promise of SECURITY.md and every feature of README.md, and the tests that it names exist."""

import ast
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

ROOT = Path(__file__).parents[2]
LIST: Final = "tests/promises.yaml"
SECTIONS: Final = ("security", "features", "sequences")
MOST_TESTS: Final = 6
LONG: Final = "pytest.mark.long"
PARAMETRIZE: Final = "pytest.mark.parametrize"
PLAIN_TEST: Final = re.compile(r"^(?:(?:async )?def (?=test_)|(?=Test\w+ = ))(\w+)", re.MULTILINE)


class Promise(NamedTuple):
    """One entry of the list."""

    text: str
    tests: tuple[str, ...]
    feature: str = ""


class Promises(NamedTuple):
    """The whole list. `only_long`: promises whose tests may all be long, with the reason."""

    sections: Mapping[str, tuple[Promise, ...]]
    only_long: Mapping[str, str]

    def all(self) -> Iterable[Promise]:
        return (promise for section in self.sections.values() for promise in section)


def read(document: Mapping[str, Any]) -> Promises:
    sections = {
        name: tuple(Promise(e["promise"], tuple(e["tests"]), e.get("feature", "")) for e in document[name])
        for name in SECTIONS
    }
    return Promises(sections, {e["promise"]: e["reason"] for e in document["only_long"]})


PROMISES = read(yaml.load((ROOT / LIST).read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


# --- which tests exist, and which are long ---


@cache
def known_tests(path: str) -> Mapping[str, bool]:
    """The tests of a file, and whether each is long, that is, whether `make test` runs none of it.

    A test is a function, a class of tests or the test case of a Hypothesis machine. Those of a class are `Class::test`, too.
    Returns: none if there is no such file.
    """
    file = ROOT / path
    text = file.read_text() if file.is_file() else ""
    if "mark.long" in text or "class Test" in text:
        return _tests(ast.parse(text).body)
    return dict.fromkeys(PLAIN_TEST.findall(text), False)  # parsing all files takes seconds


def _tests(body: list[ast.stmt], prefix: str = "", is_long: bool = False) -> dict[str, bool]:
    marks = [v for name, v in _assigned(body) if name == "pytestmark"]
    is_long = is_long or any(_always_long(m) for m in marks)
    found = {prefix + name: is_long for name, value in _assigned(body) if _is_test_case(name, value)}
    for node in body:
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        marked = is_long or any(_always_long(d) for d in node.decorator_list)
        if node.name.startswith("test_"):
            found[prefix + node.name] = marked
        elif isinstance(node, ast.ClassDef) and node.name.startswith("Test"):
            found[prefix + node.name] = marked
            found |= _tests(node.body, f"{prefix}{node.name}::", marked)
    return found


def _assigned(body: list[ast.stmt]) -> Iterable[tuple[str, ast.expr]]:
    return (
        (target.id, node.value)
        for node in body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    )


def _is_test_case(name: str, value: ast.expr) -> bool:
    return name.startswith("Test") and isinstance(value, ast.Attribute) and value.attr == "TestCase"


def _always_long(mark: ast.expr) -> bool:
    """Whether it marks every case: `long` itself, a list with it, or a `parametrize` of which each value is marked.

    A condition (`() if quick else pytest.mark.long`) marks some of the values.
    """
    if _dotted(mark) == LONG:
        return True
    if isinstance(mark, ast.List | ast.Tuple):
        return any(_always_long(m) for m in mark.elts)
    if not isinstance(mark, ast.Call) or _dotted(mark.func) != PARAMETRIZE or len(mark.args) < 2:
        return False
    values = mark.args[1]
    return isinstance(values, ast.List | ast.Tuple) and bool(values.elts) and all(map(_is_long_value, values.elts))


def _is_long_value(value: ast.expr) -> bool:
    if not isinstance(value, ast.Call) or _dotted(value.func) != "pytest.param":
        return False
    return any(k.arg == "marks" and _always_long(k.value) for k in value.keywords)


def _dotted(name: ast.expr) -> str:
    """`a.b.c`, or the end of it where the beginning is no name."""
    if isinstance(name, ast.Attribute):
        return f"{_dotted(name.value)}.{name.attr}"
    return name.id if isinstance(name, ast.Name) else ""


# --- what is wrong with a list ---


def faults_in(promises: Iterable[Promise]) -> list[str]:
    """What each wrong entry needs."""
    found = []
    for promise in promises:
        if not 1 <= len(promise.tests) <= MOST_TESTS:
            found.append(
                f"{_told(promise)} has {len(promise.tests)} tests. In {LIST}, name 1 to {MOST_TESTS} that show it."
            )
        if len(set(promise.tests)) < len(promise.tests):
            found.append(f"{_told(promise)} names a test twice. Remove one of them from {LIST}.")
        found += [fault for test in promise.tests if (fault := _fault(promise, test))]
    return found


def _fault(promise: Promise, test: str) -> str:
    path, _, name = test.partition("::")
    if name in known_tests(path):
        return ""
    what = f"{path} has no such test" if (ROOT / path).is_file() else "there is no such file"
    return (
        f"{_told(promise)} is shown by {test}, but {what}. If the test was renamed or moved, change its id in {LIST}. If it was "
        "removed, name another test there that fails when the promise is broken, or write one."
    )


def _told(promise: Promise) -> str:
    return f"The promise {promise.text!r}"


def only_long(promises: Iterable[Promise]) -> set[str]:
    """Promises of which `make test` shows none: all their tests are long."""
    return {
        p.text for p in promises if all(known_tests(t.partition("::")[0]).get(t.partition("::")[2]) for t in p.tests)
    }


# --- the tests ---


def test_each_promise_has_tests_that_exist() -> None:
    faults = faults_in(PROMISES.all())

    assert not faults, "\n".join(faults)


def test_each_promise_is_there_once() -> None:
    texts = [p.text for p in PROMISES.all()]

    assert sorted(texts) == sorted(set(texts))
    assert all(PROMISES.sections[name] for name in SECTIONS)


def test_the_promises_about_security_are_those_of_the_page() -> None:
    """Word by word: edit SECURITY.md and the section `security` together."""
    section = (ROOT / "SECURITY.md").read_text().split("## What Lethe promises\n")[1].split("\n## ")[0]
    bullets = [" ".join(b.removeprefix("- ").split()) for b in re.split(r"\n(?=- )", section)[1:]]

    assert [p.text for p in PROMISES.sections["security"]] == bullets


def test_the_features_are_those_of_the_readme() -> None:
    """Each row of the table has at least one promise, and a promise of a removed row goes, too."""
    table = (ROOT / "README.md").read_text().split("## What works\n")[1].strip().split("\n\n")[0]
    rows = [row.split("|")[1].strip() for row in table.splitlines()[2:]]

    assert list(dict.fromkeys(p.feature for p in PROMISES.sections["features"])) == rows


def test_only_the_promises_with_a_reason_have_nothing_but_long_tests() -> None:
    """Name a test that `make test` runs, or add the promise to `only_long` with the reason."""
    assert only_long(PROMISES.all()) == PROMISES.only_long.keys()
    assert all(PROMISES.only_long.values())


# --- the checks see what they are for ---

HERE: Final = "tests/unit/test_promises.py"
GONE: Final = "test_of_yesterday"


@pytest.mark.parametrize(
    ("test", "wanted"),
    [
        (f"{HERE}::{GONE}", f"{HERE} has no such test"),
        (f"tests/unit/gone.py::{GONE}", "there is no such file"),
        (HERE, f"{HERE} has no such test"),
    ],
)
def test_a_test_that_does_not_exist_is_reported_with_its_promise_and_the_remedy(test: str, wanted: str) -> None:
    there = f"{HERE}::test_each_promise_is_there_once"

    (fault,) = faults_in([Promise("No row is lost.", (there, test)), Promise("No row is added.", (there,))])

    assert "'No row is lost.'" in fault
    assert f"{test}, but {wanted}" in fault
    assert f"change its id in {LIST}" in fault


def test_a_promise_without_a_test_is_reported() -> None:
    (fault,) = faults_in([Promise("No row is lost.", ())])

    assert "'No row is lost.' has 0 tests" in fault


SOURCE: Final = """
@pytest.mark.long
def test_decorated(): ...

@pytest.mark.parametrize("n", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=[pytest.mark.long])])
def test_all_values(): ...

@pytest.mark.parametrize("n", [1, pytest.param(2, marks=pytest.mark.long)])
def test_one_value(): ...

@pytest.mark.parametrize("n", [pytest.param(n, marks=() if n else pytest.mark.long) for n in (0, 1)])
def test_values_with_a_condition(): ...

@pytest.mark.cluster
async def test_other_mark(): ...

class TestGroup:
    @pytest.mark.long
    def test_within(self): ...

class Machine(RuleBasedStateMachine): ...

TestMachine = Machine.TestCase
"""


def test_long_tests_and_all_kinds_of_tests_are_recognised() -> None:
    quick = dict.fromkeys(
        ("TestMachine", "test_one_value", "test_values_with_a_condition", "test_other_mark", "TestGroup"), False
    )
    long = dict.fromkeys(("test_decorated", "test_all_values", "TestGroup::test_within"), True)

    assert _tests(ast.parse(SOURCE).body) == quick | long
    assert set(_tests(ast.parse(f"pytestmark = [pytest.mark.cluster, {LONG}]" + SOURCE).body).values()) == {True}
    assert only_long([Promise("It lasts.", (f"{HERE}::{GONE}",))]) == set()
