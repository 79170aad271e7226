"""`lethe batches`: what the ledger remembers of each batch."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import click

from lethe.cli.opening import open_table
from lethe.cli.options import batch_column_option, json_option, table_argument
from lethe.cli.output import moment, number, print_json, print_table, working
from lethe.errors import InputError
from lethe.ledger.ledger import BatchEntry, BatchState, Ledger


@click.command()
@table_argument
@click.option("--state", "states", multiple=True, type=click.Choice([s.value for s in BatchState]), help="Only these.")
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
    """List the batches that a table knows, by the time of their last change."""
    opened = open_table(table, batch_column)
    with working("loading the batches"):
        known = opened.ledger(snapshot_id)
        if missing := [i for i in ids if i not in known.batches]:
            raise InputError("UnknownBatch", f"the ledger of {table} does not know {', '.join(map(repr, missing))}.")
        found = select(known, states, ids)
        hidden = _tombstoned(known, opened.facts.batch_field_id, found)
    if as_json:
        print_json([_document(b, hidden) for b in found])
        return
    print_table(
        ("BATCH", "STATE", "ROWS", "TIME", "SNAPSHOT", "TOMBSTONED", "BY"),
        (
            (
                b.id,
                b.state.value,
                number(b.rows),
                moment(b.time),
                number(b.snapshot_id),
                "yes" if b.id in hidden else "no",
                _by(b),
            )
            for b in found
        ),
        right=("ROWS", "SNAPSHOT"),
    )


def select(known: Ledger, states: Iterable[str], ids: Iterable[str]) -> list[BatchEntry]:
    """The entries of these ids, or all; of these states, or any. Oldest change first."""
    wanted, asked = frozenset(states), list(dict.fromkeys(ids))
    entries = [known.batches[i] for i in asked] if asked else known.batches.values()
    return sorted((b for b in entries if not wanted or b.state.value in wanted), key=_by_time)


def _by_time(b: BatchEntry) -> tuple[datetime, str]:
    return b.time, b.id


def _tombstoned(known: Ledger, field_id: int | None, found: Iterable[BatchEntry]) -> frozenset[str]:
    return frozenset(b.id for b in found if field_id is not None and (field_id, b.id) in known.tombstones)


def _by(b: BatchEntry) -> str:
    """Who or what set the state: a restatement, the batch that replaces it, or why it was refused."""
    if b.refusal:
        return b.refusal
    who = b.restatement.rpartition("/")[0] or b.restatement if b.restatement else f"run {b.run[:12]}"
    return f"{who}, replaced by {b.replaced_by}" if b.replaced_by else who


def _document(b: BatchEntry, hidden: frozenset[str]) -> dict[str, Any]:
    return {
        "id": b.id,
        "state": b.state.value,
        "rows": b.rows,
        "bytes": b.bytes,
        "time": b.time,
        "snapshotId": b.snapshot_id,
        "run": b.run,
        "restatement": b.restatement,
        "replacedBy": b.replaced_by,
        "refusal": b.refusal,
        "tombstoned": b.id in hidden,
        "objects": len(b.objects),
    }
