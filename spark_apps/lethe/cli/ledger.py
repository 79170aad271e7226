"""`lethe ledger`: show, log and verify the ledgers of a table."""

from dataclasses import asdict
from typing import Any

import click

from lethe.cli import history
from lethe.cli.opening import Opened, open_table
from lethe.cli.options import batch_column_option, json_option, table_argument
from lethe.cli.output import number_text, print_json, print_pairs, print_table, progress, time_text, working
from lethe.cli.roots import roots_of
from lethe.cli.verification import verify as verify_ledgers
from lethe.ledger.root import PARTS


@click.group()
def ledger() -> None:
    """Inspect the ledgers of a table: active tombstones, batches, history."""


@ledger.command()
@table_argument
@click.option("--snapshot", "snapshot_id", type=int, help="The ledger of this snapshot instead of the head.")
@json_option
@batch_column_option
def show(table: str, snapshot_id: int | None, as_json: bool, batch_column: str) -> None:
    """Show the counts of one ledger."""
    with working("loading the ledger"):
        shown = _shown(open_table(table, batch_column), snapshot_id)
    if as_json:
        print_json(shown)
        return
    batches = ", ".join(f"{n} {state}" for state, n in shown["batches"].items())
    chunks = ", ".join(f"{len(cs)} of {part}" for part, cs in shown["chunks"].items() if cs)
    bare = f"; bare snapshots: {shown['bare']}" if shown["bare"] else ""
    pairs = [
        ("table", shown["table"]),
        ("snapshot", str(shown["snapshotId"] or "none: the table is empty")),
        ("ledger", str(shown["ledger"] or "none: Lethe has deleted no rows")),
        ("carrier", f"snapshot {shown['carrierId']}{bare}" if shown["carrierId"] else f"none{bare}"),
        ("version", str(shown["version"])),
        ("tombstones", str(shown["tombstones"])),
        ("oldest", time_text(shown["oldestTombstoneTime"])),
        ("next evictBy", time_text(shown["nextEvictByTime"])),
        ("batches", batches or "none"),
        ("requests", str(shown["requests"])),
        ("erasures", str(shown["erasures"])),
        ("files", f"{chunks}: {shown['bytes']} bytes" if chunks else "none"),
    ]
    print_pairs(pairs)


def _shown(opened: Opened, snapshot_id: int | None) -> dict[str, Any]:
    loaded = opened.load_ledger(snapshot_id)
    root, ledger_ = loaded.root, loaded.ledger
    chunks = {p: [c.to_json() for c in root.parts.get(p, ())] if root else [] for p in PARTS}
    return {
        "table": opened.name,
        "snapshotId": opened.facts.head_id if snapshot_id is None else snapshot_id,
        "ledger": loaded.resolution.pointer,
        "carrierId": loaded.resolution.carrier_id,
        "bare": len(loaded.resolution.bare),
        "version": ledger_.version,
        "run": ledger_.pending_run or None,
        "tombstones": len(ledger_.tombstones),
        "oldestTombstoneTime": ledger_.oldest_added_on,
        "nextEvictByTime": ledger_.next_evict_by,
        "batches": {str(state): n for state, n in sorted(ledger_.states.items()) if n},
        "requests": len(ledger_.requests),
        "erasures": len(ledger_.open_erasures),
        "chunks": chunks,
        "bytes": sum(c["bytes"] for part in chunks.values() for c in part),
    }


@ledger.command()
@table_argument
@click.option(
    "-n",
    "limit",
    type=click.IntRange(min=1),
    default=20,
    show_default=True,
    help="The largest number of snapshots to list.",
)
@click.option("--all", "everything", is_flag=True, help="List all, including staged snapshots and other branches.")
@json_option
@batch_column_option
def log(table: str, limit: int, everything: bool, as_json: bool, batch_column: str) -> None:
    """List snapshots, newest first, and how each changed the tombstones.

    Another writer committed a bare snapshot. Its ledger is that of the nearest older snapshot that is not bare.
    """
    facts = open_table(table, batch_column).facts
    lines = history.lines(facts.snapshots, facts.head_id, facts.refs, everything=everything)
    shown = lines if everything else lines[:limit]
    if as_json:
        print_json([_document(line) for line in shown])
        return
    print_table(
        ("TIME", "SNAPSHOT", "OPERATION", "RUN", "ID", "+", "-", "TOTAL", "VACUUMED", "REFS"),
        (
            (
                time_text(line.time),
                str(line.snapshot_id),
                line.operation,
                "(bare)" if line.bare else line.run_kind or "",
                (line.run_id or "")[:12],
                number_text(line.added),
                number_text(line.deleted),
                number_text(line.total),
                number_text(line.vacuumed),
                ", ".join(line.refs),
            )
            for line in shown
        ),
        right=("SNAPSHOT", "+", "-", "TOTAL", "VACUUMED"),
    )
    if len(shown) < len(lines):
        click.echo(f"{len(shown)} of {len(lines)} snapshots. Use -n to list more.", err=True)


def _document(line: history.Line) -> dict[str, Any]:
    words = {"snapshot_id": "snapshotId", "run_kind": "runKind", "run_id": "runId"}
    return {words.get(k, k): v for k, v in asdict(line).items()}


@ledger.command()
@table_argument
@batch_column_option
@click.pass_context
def verify(context: click.Context, table: str, batch_column: str) -> None:
    """Read all ledger files of all retained snapshots and compare them with their roots and with the snapshot summaries.
    Exit code 1 if there is a problem."""
    opened = open_table(table, batch_column)
    carried = sum(s.ledger is not None for s in opened.facts.snapshots.values())
    with progress() as bar:
        roots_bar = bar.add_task("roots", total=carried)
        roots = roots_of(opened, lambda: bar.advance(roots_bar))
        files_bar = bar.add_task("files", total=None)
        found = verify_ledgers(opened, roots, lambda n: bar.update(files_bar, total=n) if n else bar.advance(files_bar))
    for problem in found.problems:
        click.echo(problem)
    verdict = f"{len(found.problems)} problems" if found.problems else "no problems"
    click.echo(f"{table}: {found.snapshots} snapshots, {found.ledgers} ledgers, {found.files} files: {verdict}")
    context.exit(1 if found.problems else 0)
