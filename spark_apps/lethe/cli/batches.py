"""`lethe batches`: what the table remembers of each batch; `lethe track`: let its table of batches say so."""

from collections.abc import Collection, Iterable
from typing import Any

import click

from lethe.base.errors import InputError
from lethe.batches_table import table as tracking
from lethe.batches_table.read import read_rows
from lethe.buffer.batch_rows import STATES, BatchRow, row_of
from lethe.cli.opening import Opened, open_table
from lethe.cli.options import batch_column_option, json_option, table_argument
from lethe.cli.output import moment, number, print_json, print_pairs, print_table, working
from lethe.iceberg import catalogs
from lethe.ledger.ledger import Ledger
from lethe.ledger.parts import get_many


@click.command()
@table_argument
@click.option("--state", "states", multiple=True, type=click.Choice(STATES), help="Only these.")
@click.option("--id", "ids", multiple=True, help="Only this batch; may be given several times.")
@click.option("--snapshot", "snapshot_id", type=int, help="As of this snapshot instead of the head.")
@json_option
@batch_column_option
def batches(
    table: str,
    states: tuple[str, ...],
    ids: tuple[str, ...],
    snapshot_id: int | None,
    as_json: bool,
    batch_column: str,
) -> None:
    """List the batches that a table knows, by the time of their last change.

    Reads the table of batches beside it when that shows the ledger of the head, else the ledger itself, which does not know
    what waits in the buffer.
    """
    opened = open_table(table, batch_column)
    with working("loading the batches"):
        known = opened.ledger(snapshot_id)
        found = _tracked(opened, known, states, ids) if snapshot_id is None else None
        if found is None:
            found = select(known, states, ids)
        if missing := sorted(frozenset(ids) - _known(found, known, ids)):
            raise InputError("UnknownBatch", f"the ledger of {table} does not know {', '.join(map(repr, missing))}.")
        hidden = _tombstoned(known, opened.facts.batch_field_id, found)
    if as_json:
        print_json([_document(b, hidden) for b in found])
        return
    print_table(
        ("BATCH", "STATE", "ROWS", "TIME", "SNAPSHOT", "TOMBSTONED", "BY"),
        (
            (
                b.batch_id,
                b.state,
                number(b.rows),
                moment(b.state_time),
                number(b.snapshot_id),
                "yes" if b.batch_id in hidden else "no",
                _by(b),
            )
            for b in found
        ),
        right=("ROWS", "SNAPSHOT"),
    )


@click.command()
@table_argument
@click.option("--rebuild", is_flag=True, help="Make all of it anew, whatever it shows.")
@batch_column_option
def track(table: str, rebuild: bool, batch_column: str) -> None:
    """Let the table of batches beside a table show its ledger; make it if it is not there.

    A Dataset's runs do so by themselves. The table itself is not touched.
    """
    opened = open_table(table, batch_column)
    catalog, _, name = table.partition(".")
    with working(f"bringing {tracking.name_of(table)} up to date"):
        done = tracking.bring_up_to_date(catalogs.load(catalog), name, batch_column, create=True, anew=rebuild)
    assert done is not None
    totals = done.shown.totals
    print_pairs(
        (
            ("table", tracking.name_of(opened.name)),
            ("ledger", f"version {done.shown.version}"),
            ("batches", ", ".join(f"{totals[s].batches} {s}" for s in STATES if totals[s].batches) or "none"),
            ("changed", "no" if done.snapshot_id is None else "all of it" if done.rebuilt else "what was behind"),
        )
    )


def select(known: Ledger, states: Iterable[str], ids: Iterable[str]) -> list[BatchRow]:
    """The ledger's entries of these ids, or all; of these states, or any. Oldest change first."""
    wanted, asked = frozenset(states), list(dict.fromkeys(ids))
    entries = get_many(known.batches, asked).values() if asked else known.batches.values()
    return sorted((row_of(b) for b in entries if not wanted or b.state.value in wanted), key=_by_time)


def _tracked(opened: Opened, known: Ledger, states: Collection[str], ids: Collection[str]) -> list[BatchRow] | None:
    """The same out of the table of batches; None when that is not there, or is of another ledger than the head's."""
    catalog, _, name = opened.name.partition(".")
    try:
        table = tracking.find(catalogs.load(catalog), name)
    except InputError as e:
        click.echo(f"lethe: {e.message}", err=True)
        return None
    shown = tracking.shown(table) if table is not None else None
    if table is None or shown is None:
        return None
    if (shown.table_uuid, shown.ledger) != (opened.facts.uuid, opened.load_ledger().resolution.pointer or ""):
        click.echo(
            f"lethe: {tracking.name_of(opened.name)} shows version {shown.version} of the ledger, which is at {known.version}: "
            f"this is the ledger. `lethe track {opened.name}` brings it up to date.",
            err=True,
        )
        return None
    return sorted(read_rows(table, states, ids), key=_by_time)


def _known(found: Iterable[BatchRow], known: Ledger, ids: Collection[str]) -> frozenset[str]:
    return frozenset(b.batch_id for b in found) | get_many(known.batches, ids).keys()


def _by_time(b: BatchRow) -> tuple[Any, str]:
    return b.state_time, b.batch_id


def _tombstoned(known: Ledger, field_id: int | None, found: Iterable[BatchRow]) -> frozenset[str]:
    if field_id is None or not known.tombstones:
        return frozenset()
    return frozenset(id for _, id in get_many(known.tombstones, [(field_id, b.batch_id) for b in found]))


def _refusal(b: BatchRow) -> str:
    return ": ".join(t for t in (b.refusal_reason, b.refusal_message) if t)


def _by(b: BatchRow) -> str:
    """Who or what set the state: a restatement, the batch that replaces it, or why it was refused."""
    if refusal := _refusal(b):
        return refusal
    if b.run_id is None:
        return "its producer"
    who = b.restatement.rpartition("/")[0] or b.restatement if b.restatement else f"run {b.run_id[:12]}"
    return f"{who}, replaced by {b.replaced_by}" if b.replaced_by else who


def _document(b: BatchRow, hidden: frozenset[str]) -> dict[str, Any]:
    return {
        "id": b.batch_id,
        "state": b.state,
        "rows": b.rows,
        "bytes": b.bytes,
        "time": b.state_time,
        "snapshotId": b.snapshot_id,
        "run": b.run_id,
        "restatement": b.restatement,
        "replacedBy": b.replaced_by,
        "refusal": _refusal(b) or None,
        "tombstoned": b.batch_id in hidden,
        "objects": b.objects or 0,
    }
