"""Which batches a command is about: by patterns, ranges and lists. What matches is pure; reading the ledger and asking is I/O."""

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from pathlib import Path
from typing import Any, Final, TypeVar

import click
from lethe import ledger_store
from lethe.base.errors import InputError
from lethe.cli.output import working
from lethe.contract.settings import Operation
from lethe.iceberg import catalogs
from lethe.iceberg.facts import observe
from lethe.ledger.ledger import BatchEntry, BatchState, get_many
from lethe.restatement.group import parse_ids
from lethe.restatement.selection import CHANGED_STATES
from lethe_operator.resources.dataset import parse_dataset
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

from lethe_kubectl.lookup import one, use_catalogs
from lethe_kubectl.target import Connection, connected

RANGE: Final = ".."
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(frozen=True)
class Selection:
    """What the command line says about batches, besides their ids."""

    patterns: tuple[str, ...] = ()
    list_file: Path | None = None
    yes: bool = False
    """Do not ask."""
    reference: str = ""
    """Those that the run of another program delivered; the run of the Restatement finds them."""

    def __bool__(self) -> bool:
        return bool(self.patterns or self.reference) or self.list_file is not None

    def listed(self) -> tuple[str, ...]:
        """The ids in the file.

        Raises:
            InputError: `InvalidIdList`.
        """
        if self.list_file is None:
            return ()
        with click.open_file(str(self.list_file), "rb") as file:
            return parse_ids(file.read(), "--batches-from").ids


def selection_options(function: F) -> F:
    """--batches, --batches-from, --reference and --yes, as one argument `selection`."""

    def gather(batches: tuple[str, ...], batches_from: Path | None, reference: str, yes: bool, **rest: Any) -> Any:
        return function(selection=Selection(batches, batches_from, yes, reference), **rest)

    gather.__doc__, gather.__name__ = function.__doc__, function.__name__
    gather.__click_params__ = getattr(function, "__click_params__", [])  # type: ignore[attr-defined]
    for option in (
        click.option("-y", "--yes", is_flag=True, help="Do not ask before --batches and --batches-from change something."),
        click.option(
            "--reference",
            default="",
            help="The batches that the run of another program delivered: its id, as `lethe put` or _SUCCESS named it. "
            "The Restatement finds them, also those in the buffer.",
        ),
        click.option(
            "--batches-from",
            type=click.Path(exists=True, dir_okay=False, allow_dash=True, path_type=Path),
            help="A file with ids, one per line; - reads standard input.",
        ),
        click.option(
            "--batches",
            multiple=True,
            help="The batches of the ledger whose ids match a pattern such as 'load-2026-11-*', or are in a range such as "
            "2026-11-01..2026-11-30, in the order of texts and with its ends. Repeatable.",
        ),
    ):  # fmt: skip
        option(gather)
    return gather  # type: ignore[return-value]


def matcher(pattern: str) -> Callable[[str], bool]:
    """Whether an id matches a pattern or is in a range. A range contains also the ids that begin with its end.

    Raises:
        InputError: `InvalidRange`, if a range ends before it begins.
    """
    if RANGE not in pattern:
        expression = re.compile(translate(pattern))
        return lambda batch_id: expression.match(batch_id) is not None
    first, _, last = pattern.partition(RANGE)
    if last and last < first:
        raise InputError("InvalidRange", f"--batches {pattern}: {last!r} comes before {first!r} in the order of texts.")
    return lambda batch_id: first <= batch_id and (not last or batch_id <= last or batch_id.startswith(last))


@dataclass(frozen=True)
class Chosen:
    """The batches that a change is about."""

    ids: tuple[str, ...]
    rows: int
    """Of those that the ledger knows."""
    unknown: int
    """How many the ledger does not know."""
    left_out: Mapping[BatchState, int]
    """How many match and are in a state in which the operation changes nothing."""

    def preview(self, operation: Operation, dataset: str) -> str:
        """A few lines."""
        lines = [f"{operation.value} {len(self.ids)} batches of dataset/{dataset}: {self.rows} rows"]
        lines += [f"  first: {min(self.ids)}", f"  last: {max(self.ids)}"]
        lines += [f"  not in the ledger: {self.unknown}"] if self.unknown else []
        others = ", ".join(f"{count} {state.value}" for state, count in sorted(self.left_out.items()))
        return "\n".join(lines + ([f"  match and are left out: {others}"] if others else []))


def choose(
    ids: Sequence[str], patterns: Sequence[str], entries: Mapping[str, BatchEntry], operation: Operation
) -> Chosen:
    """The named ids, and those that match in a state that the operation changes.

    Raises:
        InputError: `NoMatch`, `InvalidRange`.
    """
    chosen, left_out = dict.fromkeys(ids), Counter[BatchState]()
    for pattern in patterns:
        matches = matcher(pattern)
        found = [e for e in entries.values() if matches(e.id)]
        usable = sorted(e.id for e in found if e.state in CHANGED_STATES[operation])
        if not usable:
            states = ", ".join(f"{n} {s.value}" for s, n in sorted(Counter(e.state for e in found).items()))
            raise InputError(
                "NoMatch",
                f"--batches {pattern} matches no batch to {operation.value.lower()}"
                f"{f' ({states})' if states else ''}. `lethe batches` lists those of the ledger.",
            )
        chosen.update(dict.fromkeys(usable))
        left_out.update(e.state for e in found if e.state not in CHANGED_STATES[operation])
    known = get_many(entries, chosen)
    rows = sum(e.rows or 0 for e in known.values())
    return Chosen(tuple(chosen), rows, len(chosen) - len(known), left_out)


def selected(
    selection: Selection, operation: Operation, dataset: str, named: Sequence[str], how: Mapping[str, Any]
) -> tuple[str, ...]:
    """The ids of the batches. If a selection chose some, prints a preview and asks.

    Args:
        named: The ids on the command line.
        how: The options of `change_options` and `target_options`.

    Raises:
        InputError: `NoMatch`, `InvalidRange`, `InvalidIdList`, `UnknownName`, `UnknownCatalog`.
        click.UsageError: Both a reference and batches are named.
    """
    if selection.reference:
        if named or selection.patterns or selection.list_file is not None:
            raise click.UsageError("--reference takes no batches, --batches or --batches-from.")
        return ()
    if not selection:
        return tuple(dict.fromkeys(named))
    ids = (*named, *selection.listed())
    with connected(how["choice"]) as at:
        entries = _entries(at, one(at, "dataset", dataset), needed=bool(selection.patterns))
    chosen = choose(ids, selection.patterns, entries or {}, operation)
    click.echo(chosen.preview(operation, dataset) if entries is not None else f"{len(chosen.ids)} batches", err=True)
    if not selection.yes and not how["dry_run"] and how["output"] not in ("yaml", "json"):
        if not is_terminal():
            raise click.UsageError("Without a terminal, --batches and --batches-from need --yes.")
        click.confirm("Go on?", abort=True, err=True)
    return chosen.ids


def is_terminal() -> bool:
    """Whether somebody can answer."""
    return sys.stdin.isatty()


def _entries(at: Connection, document: dict[str, Any], needed: bool) -> Mapping[str, BatchEntry] | None:
    """The batches of the ledger; None: this machine cannot open the table, and they are not needed."""
    of = parse_dataset(document)
    try:
        use_catalogs(at, document)
    except InputError:
        if needed:
            raise
        return None
    with working("reading the ledger"):
        try:
            table = catalogs.load(of.spec.table.catalog).load_table(of.spec.table.name)
        except (NoSuchTableError, NoSuchNamespaceError):
            return {}
        facts = observe(table, of.spec.batch_column, of.spec.table.name)
        return ledger_store.load(table.io, facts).ledger.batches


def require_some(batch: Iterable[str], selection: Selection) -> None:
    """Require that the command line names batches.

    Raises:
        click.UsageError: It does not.
    """
    if not tuple(batch) and not selection:
        raise click.UsageError("Name batches by their ids, by --batches, --batches-from or --reference.")
