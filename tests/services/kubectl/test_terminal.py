"""The tables of all commands on terminals of 60, 80 and 120 columns, with long names, ids and reasons; colours; `--watch`."""

import ast
import os
import pty
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import lethe
import lethe_kubectl
import lethe_local
import lethe_plan
import pytest
import yaml
from click.testing import Result
from lethe.cli import output
from lethe.cli.main import cli
from lethe.kube import DATASETS, RESTATEMENTS, VACUUM_POLICIES
from lethe.ledger.ledger import BatchState
from lethe.ledger.tombstone import Erasure

from tests.services.kubectl.conftest import LocalApi
from tests.support.builders import NOW, RUN, a_batch, a_request_entry
from tests.support.documents import resource
from tests.support.tables import commit_delta
from tests.tables.lethe.cli.conftest import Kept
from tests.tables.lethe.cli.test_erasures_commands import close

DATASET = "flights"
REVERT = "revert-of-the-flights-that-were-invented-994cc8a97f"
RUN_NAME = "flights-restatement-0123456789abcdef-3"
BATCH = "2013-02-08.UA.0189f7ea-ae2c-7809-8aeb-b819cf5e9e7f"
UNKNOWN = f"{BATCH}-unknown"
REASON = "UndoneRestatementNotCommitted"
MESSAGE = f"The run {RUN_NAME} failed: s3://lake/air/flights/data/{'0' * 32}/part-00000.parquet is not readable."
WIDTHS = (60, 80, 120)

Case = tuple[str, ...]
CASES: dict[Case, tuple[str, ...]] = {
    ("status",): (f"dataset/{DATASET}", f"restatement/{REVERT}", REASON),
    ("status", "-o", "wide"): (f"restatement/{REVERT}", REASON, *MESSAGE.split()),
    ("runs",): (RUN_NAME, "Failed", REASON),
    ("cost",): (DATASET,),
    ("runs", "-o", "wide"): (RUN_NAME, REASON, *MESSAGE.split()),
    ("batches", DATASET): (BATCH, "promoted", f"default/{REVERT}"),
    ("batches", DATASET, "-o", "wide"): (BATCH, "reverted", RUN),
    ("history", DATASET, BATCH): ("reverted", f"default/{REVERT}"),
    ("erasures", "list", DATASET): ("ns/erase", f"default/{REVERT}", "verified"),
    ("erasures", "list", DATASET, "-o", "wide"): ("ns/erase", "consent", "{record}"),
    ("erasures", "show", DATASET, "ns/erase"): ("ns/erase,", "consent", "GDPR-17"),
    ("local", "get", "datasets", "-o", "wide"): (DATASET, REASON),
    ("local", "get", "restatements", "-o", "wide"): (REVERT,),
    ("local", "describe", "restatement", REVERT): (REVERT, REASON, *MESSAGE.split()),
    ("plan", "-f", "{file}"): (f"restatement/{REVERT}-2", UNKNOWN),
    ("ledger", "log", "local.air.flights"): ("{head}",),
    ("ledger", "show", "local.air.flights"): ("{head}",),
    ("read", "local.air.flights"): (BATCH,),
}
TABLES_OF = {
    "spark_apps": {
        "batches.batches", "batches.history", "batches.track", "erasures.list_", "erasures.show", "ledger.log", "ledger.show",
        "read._show",
    },
    "operator": {"cli.describe", "cli.get", "command._print", "commands._show_runs", "cost.cost", "commands._show_status"},
}  # fmt: skip
"""The functions that print tables. Each is called by a command in CASES, except `track`, which prints short pairs."""
PRINTING = {"print_table", "print_pairs"}


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Let the output be a terminal of this width, without colours."""
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    return lambda width: monkeypatch.setenv("COLUMNS", str(width))


@pytest.fixture
def lake(local: LocalApi, kept: Kept) -> LocalApi:
    """A Dataset, a VacuumPolicy and a failed Restatement with all that statuses say, and a table with batches and erasures."""
    ready = {"type": "Ready", "status": "False", "reason": REASON, "message": MESSAGE, "lastTransitionTime": _now()}
    run = {
        "name": RUN_NAME,
        "kind": "Restatement",
        "phase": "Failed",
        "attempt": 3,
        "reason": REASON,
        "message": MESSAGE,
    }
    local.dataset(
        DATASET,
        status={
            "conditions": [ready],
            "batches": {"promoted": 123_456_789},
            "buffer": {"batches": 1_234_567},
            "consolidation": {"reason": "WaitingForFirstBatch"},
            "vacuum": {"reason": "WaitsForOtherVacuums"},
            "runs": [{**run, "progress": "123456/400000 tasks", "startTime": _now(), "finishTime": _now()}],
        },
        table={"catalog": "local", "name": "air.flights", "adopt": True},
    )
    policy = {"datasetSelector": {"matchLabels": {"team": "air"}}, "triggers": {"activeTombstones": 9}}
    local.kube.create(VACUUM_POLICIES, "default", resource("VacuumPolicy", "nightly-vacuum-of-all-tables", policy))
    local.kube.create(RESTATEMENTS, "default", a_revert(REVERT))
    local.kube.patch(RESTATEMENTS, "default", REVERT, {"status": {"phase": "Failed", "conditions": [ready]}}, "status")
    kept.append(BATCH)
    asked = a_request_entry(f"default/{REVERT}/0", operation="Erase", batch_ids=(BATCH,))
    entry = a_batch(BATCH, BatchState.REVERTED, restatement=f"default/{REVERT}/0")
    commit_delta(
        kept.table,
        set_batches=(entry, a_batch(f"{BATCH}-2", rows=12_345_678_901)),
        set_requests=(asked,),
        set_erasures=(Erasure(f"default/{REVERT}/0", 2, NOW),),
    )
    close(kept, "ns/erase/0", "A", [])
    return local


def a_revert(name: str, batch: str = BATCH) -> dict[str, Any]:
    spec = {"datasetRef": {"name": DATASET}, "operation": "Revert", "batchIds": [batch], "unknownBatches": "Allow"}
    return resource("Restatement", name, spec)


def _now() -> str:
    return f"{output.datetime.now(output.UTC):%Y-%m-%dT%H:%M:%SZ}"


@pytest.mark.parametrize("width", WIDTHS)
def test_no_table_cuts_a_word_or_is_wider_than_the_terminal(
    lake: LocalApi, kept: Kept, tmp_path: Path, terminal: Callable[[int], None], width: int
) -> None:
    file = tmp_path / "restatement.yaml"
    file.write_text(yaml.safe_dump(a_revert(f"{REVERT}-2", UNKNOWN)))
    told = {"{file}": str(file), "{head}": str(kept.head), "{record}": _record_of(kept)}
    terminal(width)

    shown = {c: _run(lake, *(told.get(argument, argument) for argument in c)) for c in CASES}

    assert {c: r.output for c, r in shown.items() if r.exit_code not in (0, 1)} == {}
    lines = [line for r in shown.values() for line in r.stdout.splitlines() if not line.startswith("next: ")]
    assert [line for line in lines if "…" in line or "..." in line] == []
    assert [line for line in lines if len(line) > width and " " in line.strip()] == []
    missing = {c: {told.get(w, w) for w in CASES[c]} - set(r.stdout.split()) for c, r in shown.items()}
    assert {c: words for c, words in missing.items() if words} == {}


def _record_of(kept: Kept) -> str:
    location = kept.table.location()
    (path,) = Path(location.removeprefix("file://"), "_erasures").glob("*.json")
    return f"file://{path}"


def _run(lake: LocalApi, *arguments: str) -> Result:
    return lake.lethe(*arguments) if "local.air.flights" not in arguments else lake.on_table(*arguments)


def test_every_function_that_prints_a_table_is_known_here() -> None:
    found: dict[str, set[str]] = {"spark_apps": set(), "operator": set()}
    for package, where in (
        (lethe, "spark_apps"),
        (lethe_kubectl, "operator"),
        (lethe_local, "operator"),
        (lethe_plan, "operator"),
    ):
        for path in Path(*package.__path__).rglob("*.py"):
            source = path.read_text()
            if any(f"{name}(" in source for name in PRINTING):  # to parse all modules takes seconds
                found[where] |= {f"{path.stem}.{name}" for name in _printing(ast.parse(source))}

    found["spark_apps"].discard("output.print_table")
    assert found == TABLES_OF


def _printing(module: ast.Module) -> Iterator[str]:
    for function in ast.walk(module):
        if isinstance(function, ast.FunctionDef):
            called = {c.func.id for c in ast.walk(function) if isinstance(c, ast.Call) and isinstance(c.func, ast.Name)}
            if called & PRINTING:
                yield function.name


def test_columns_that_are_left_out_are_named_and_wide_leaves_out_none(
    lake: LocalApi, terminal: Callable[[int], None]
) -> None:
    terminal(80)

    narrow, wide = lake.lethe("runs"), lake.lethe("runs", "-o", "wide")

    left_out = "DATASET, KIND, PROGRESS, ATTEMPT, STARTED, TOOK"
    assert narrow.stderr == f"no room in 80 columns for {left_out}: a wider terminal or a pipe shows all\n"
    assert (wide.stderr, wide.stdout.startswith(f"RUN        {RUN_NAME}\n")) == ("", True)


def test_other_forms_of_output_do_not_depend_on_the_terminal(lake: LocalApi, terminal: Callable[[int], None]) -> None:
    for form in ("json", "yaml", "name"):
        terminal(200)
        broad = lake.lethe("runs", "-o", form).stdout
        terminal(40)
        assert lake.lethe("runs", "-o", form).stdout == broad


def test_colours_are_for_terminals_and_not_with_no_color(lake: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    def on_a_terminal(**environment: str) -> bytes:
        controller, terminal = pty.openpty()
        with monkeypatch.context() as here, os.fdopen(terminal, "w") as output:
            here.setattr(sys, "stdout", output)
            for name, value in {"TERM": "xterm-256color", "COLUMNS": "100", **environment}.items():
                here.setenv(name, value)
            cli.main(["runs", "--dir", str(lake.folder.path)], standalone_mode=False)
        return _everything(controller)

    for variable in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)

    coloured, plain, piped = on_a_terminal(), on_a_terminal(NO_COLOR="1"), lake.lethe("runs").stdout

    assert b"\x1b[1;31mFailed" in coloured
    assert (b"\x1b" in plain, b"Failed" in plain, "\x1b" in piped) == (False, True, False)


def _everything(controller: int) -> bytes:
    content = b""
    try:
        while piece := os.read(controller, 65536):
            content += piece
    except OSError:  # Linux says so where the other side is closed
        pass
    os.close(controller)
    return content


def test_watch_shows_each_change_until_it_is_interrupted(lake: LocalApi, monkeypatch: pytest.MonkeyPatch) -> None:
    changes = iter(["Ready", "Ready", "Failed"])

    def change(_: float) -> None:
        phase = next(changes, None)
        if phase is None:
            raise KeyboardInterrupt
        runs = [{"name": RUN_NAME, "kind": "Vacuum", "phase": phase}]
        lake.kube.patch(DATASETS, "default", DATASET, {"status": {"runs": runs}}, "status")

    monkeypatch.setattr(output.time, "sleep", change)

    shown = lake.lethe("runs", "--watch", "-o", "json")

    phases = [line.strip() for line in shown.stdout.splitlines() if "phase" in line]
    assert phases == [f'"phase": "{phase}",' for phase in ("Failed", "Ready", "Failed")]
