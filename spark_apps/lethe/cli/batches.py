"""`lethe batches` lists the batches of a table, `lethe history` shows one, and `lethe track` updates the table of batches."""

from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Final

import click
from pydantic.alias_generators import to_camel

from lethe import batches_table, tables
from lethe.base.errors import InputError
from lethe.batches_table import read_rows
from lethe.buffer.batch_rows import STATES, BatchRow, row_of
from lethe.cli.opening import Opened, open_table, table_or_dataset
from lethe.cli.output import (
    json_option,
    number_text,
    output_option,
    print_document,
    print_pairs,
    print_table,
    time_text,
    working,
)
from lethe.contract.run import Provenance
from lethe.iceberg import catalogs
from lethe.ledger.ledger import Ledger, get_many
from lethe.restatement.plan import provenances

_HEADERS: Final = ("BATCH", "STATE", "ROWS", "TIME", "SNAPSHOT", "TOMBSTONED", "BY")
_WIDE: Final = ("BYTES", "OBJECTS", "RUN", "REFERENCE", "REQUESTED BY", "TICKET", "REASON")
_OPTIONAL: Final = ("TOMBSTONED", "SNAPSHOT", "TIME", "ROWS")
_CHANGE_HEADERS: Final = (
    "TIME",
    "STATE",
    "ROWS",
    "SNAPSHOT",
    "TOMBSTONED",
    "BY",
    "REFERENCE",
    "REQUESTED BY",
    "TICKET",
    "REASON",
)
_OF_CHANGE: Final = ("run_id", "restatement", "replaced_by", "refusal_reason")


@click.command()
@table_or_dataset
@click.option(
    "--state", "states", multiple=True, type=click.Choice(STATES), help="Only batches in this state. Repeatable."
)
@click.option("--id", "ids", multiple=True, help="Only this batch. Repeatable.")
@click.option("--snapshot", "snapshot_id", type=int, help="At this snapshot instead of the head.")
@output_option
@json_option
def batches(
    table: str,
    states: tuple[str, ...],
    ids: tuple[str, ...],
    snapshot_id: int | None,
    output: str,
    as_json: bool,
    batch_column: str,
) -> None:
    """List the batches of a table, or of the table of a Dataset, by the time of their last change.

    Reads the table of batches if it shows the ledger of the head. Otherwise reads the ledger, which does not contain the batches
    that wait in the buffer.
    """
    opened = open_table(table, batch_column)
    with working("loading the batches"):
        current_ledger = opened.ledger(snapshot_id)
        tracked = _tracked(opened, current_ledger, states, ids) if snapshot_id is None else None
        if tracked is None:
            tracked = select(current_ledger, states, ids)
        if missing := sorted(frozenset(ids) - _known(tracked, current_ledger, ids)):
            raise InputError("UnknownBatch", f"the ledger of {table} has no batch {', '.join(map(repr, missing))}.")
        hidden = _tombstoned(current_ledger, opened.facts.batch_field_id, tracked)
        form = "json" if as_json else output
        keys = [b.restatement for b in tracked if b.restatement and form in ("json", "yaml", "wide")]
        asked = provenances(current_ledger.requests, keys)
    match form:
        case "json" | "yaml":
            print_document([_document(b, hidden, asked.get(b.restatement or "")) for b in tracked], form)
        case "name":
            click.echo("".join(f"{b.batch_id}\n" for b in tracked), nl=False)
        case _:
            wide = form == "wide"
            print_table(
                (*_HEADERS, *(_WIDE if wide else ())),
                (
                    [*_row(b, b.batch_id in hidden), *(_wide(b, asked.get(b.restatement or "")) if wide else ())]
                    for b in tracked
                ),
                right=("ROWS", "SNAPSHOT", "BYTES", "OBJECTS"),
                optional=() if wide else _OPTIONAL,
            )


def _row(b: BatchRow, hidden: bool) -> list[str]:
    row = [b.batch_id, b.state, number_text(b.rows), time_text(b.state_time), number_text(b.snapshot_id)]
    return [*row, "yes" if hidden else "no", _by(b)]


def _wide(b: BatchRow, provenance: Provenance | None) -> list[str]:
    asked = provenance or Provenance()
    row = [number_text(b.bytes), number_text(b.objects), b.run_id or "", b.reference or ""]
    return [*row, asked.requested_by, asked.ticket, asked.reason]


def _by(b: BatchRow) -> str:
    """What set the state: a Restatement, a run, the batch that replaces it, or the reason for its refusal."""
    if refusal := _refusal(b):
        return refusal
    if b.run_id is None:
        return "producer"
    who = b.restatement.rpartition("/")[0] or b.restatement if b.restatement else f"run {b.run_id}"
    return f"{who}, replaced by {b.replaced_by}" if b.replaced_by else who


def _tracked(
    opened: Opened, table_ledger: Ledger, states: Collection[str], ids: Collection[str]
) -> list[BatchRow] | None:
    """The same from the table of batches. None: it does not exist, or does not show the ledger of the head."""
    catalog, _, name = opened.name.partition(".")
    try:
        table = batches_table.find(catalogs.load(catalog), name)
    except InputError as e:
        click.echo(f"lethe: {e.message}", err=True)
        return None
    shown = batches_table.shown(table) if table is not None else None
    if table is None or shown is None:
        return None
    if (shown.table_uuid, shown.ledger) != (opened.facts.uuid, opened.load_ledger().resolution.pointer or ""):
        click.echo(
            f"lethe: {batches_table.name_of(opened.name)} shows version {shown.version} of the ledger, whose current version is "
            f"{table_ledger.version}. This list is from the ledger. To update the table of batches, run "
            f"`lethe track {opened.name}`.",
            err=True,
        )
        return None
    return sorted(read_rows(table, states, ids), key=_by_time)


def _known(found: Iterable[BatchRow], table_ledger: Ledger, ids: Collection[str]) -> frozenset[str]:
    return frozenset(b.batch_id for b in found) | get_many(table_ledger.batches, ids).keys()


def _tombstoned(table_ledger: Ledger, field_id: int | None, found: Iterable[BatchRow]) -> frozenset[str]:
    if field_id is None or not table_ledger.tombstones:
        return frozenset()
    return frozenset(id for _, id in get_many(table_ledger.tombstones, [(field_id, b.batch_id) for b in found]))


def _document(b: BatchRow, hidden: frozenset[str], provenance: Provenance | None) -> dict[str, Any]:
    asked = provenance or Provenance()
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
        "requestedBy": asked.requested_by or None,
        "ticket": asked.ticket or None,
        "reason": asked.reason or None,
        "reference": b.reference,
    }


@click.command()
@table_or_dataset
@click.argument("batch")
@click.option("-o", "--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def history(table: str, batch: str, output: str, batch_column: str) -> None:
    """Show what happened to a BATCH: when it was promoted, taken back, redacted or purged, by what, who asked for it, and why.

    Reads the ledgers of the retained snapshots: what changed before the oldest of them is not shown one by one. A Redact is shown
    if it names the batch, not if it names records.
    """
    opened = open_table(table, batch_column)
    with working(f"reading the ledgers of {opened.name}"):
        changes = tables.history(opened.table, batch).to_pylist()
    if output != "table":
        print_document([{to_camel(name): value for name, value in change.items()} for change in changes], output)
        return
    print_table(
        _CHANGE_HEADERS,
        [
            [
                time_text(c["time"]),
                c["state"],
                number_text(c["rows"]),
                number_text(c["snapshot_id"]),
                "yes" if c["tombstoned"] else "no",
                _who(c),
                *(c[name] or "" for name in ("reference", "requested_by", "ticket", "reason")),
            ]
            for c in changes
        ],
        right=("ROWS", "SNAPSHOT"),
        optional=("TOMBSTONED", "SNAPSHOT", "ROWS", "REFERENCE"),
    )


def _who(change: Mapping[str, Any]) -> str:
    """What made a change, as in the list of batches."""
    return _by(BatchRow("", change["state"], change["time"], **{name: change[name] for name in _OF_CHANGE}))


@click.command()
@table_or_dataset
@click.option("--rebuild", is_flag=True, help="Rebuild the whole table from the ledger, even if it is current.")
@click.option("--dry-run", is_flag=True, help="Write nothing, and print what would change.")
def track(table: str, rebuild: bool, dry_run: bool, batch_column: str) -> None:
    """Update the table of batches from the ledger of a table, or create it.

    The runs of a Dataset do this automatically. The table itself does not change.
    """
    opened = open_table(table, batch_column)
    if dry_run:
        print_pairs(_planned(opened, rebuild))
        return
    catalog, _, name = table.partition(".")
    with working(f"updating {batches_table.name_of(table)}"):
        done = batches_table.bring_up_to_date(
            catalogs.load(catalog), name, batch_column, batches_table.TrackingUpdate(create=True, rebuild=rebuild)
        )
    assert done is not None
    totals = done.shown.totals
    print_pairs(
        (
            ("table", batches_table.name_of(opened.name)),
            ("ledger", f"version {done.shown.version}"),
            ("batches", ", ".join(f"{totals[s].batches} {s}" for s in STATES if totals[s].batches) or "none"),
            ("changed", "no" if done.snapshot_id is None else "rebuilt" if done.rebuilt else "updated"),
        )
    )


def _planned(opened: Opened, rebuild: bool) -> Iterator[tuple[str, str]]:
    """What `track` would do."""
    catalog, _, name = opened.name.partition(".")
    table = batches_table.find(catalogs.load(catalog), name)
    shown = batches_table.shown(table) if table is not None else None
    loaded = opened.load_ledger()
    states = {str(state): count for state, count in loaded.ledger.states.items()}
    current = shown is not None and shown.ledger == (loaded.resolution.pointer or "")
    change = "created" if table is None else "rebuilt" if rebuild or shown is None else "" if current else "updated"
    yield "table", batches_table.name_of(opened.name)
    yield "ledger", f"version {loaded.ledger.version}" + (f", it shows {shown.version}" if shown is not None else "")
    yield "batches", ", ".join(f"{states[s]} {s}" for s in STATES if states.get(s)) or "none"
    yield "changed", f"it would be {change} (dry run)" if change else "no (dry run)"


def select(table_ledger: Ledger, states: Iterable[str], ids: Iterable[str]) -> list[BatchRow]:
    """The ledger's batches with these ids and states, ordered by their last change. Empty means all."""
    state_names, asked = frozenset(states), list(dict.fromkeys(ids))
    entries = get_many(table_ledger.batches, asked).values() if asked else table_ledger.batches.values()
    return sorted((row_of(b) for b in entries if not state_names or b.state.value in state_names), key=_by_time)


def _by_time(b: BatchRow) -> tuple[Any, str]:
    return b.state_time, b.batch_id


def _refusal(b: BatchRow) -> str:
    return ": ".join(t for t in (b.refusal_reason, b.refusal_message) if t)
