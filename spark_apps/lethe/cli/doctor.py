"""`lethe doctor` reports what is wrong with a table, and what to do.

Reads what `doctor` needs: metadata, manifests, ledger roots, and the list of ledger files. I/O.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

import click
from pyiceberg.manifest import ManifestContent
from rich.text import Text

from lethe import batches_table, ledger_store
from lethe.base import names
from lethe.base.errors import InputError, LedgerError
from lethe.cli.diagnosis import DEFAULT_METRICS, Examined, ExaminedBatches, Finding, ListedFile, diagnose, is_healthy
from lethe.cli.ledger import name_of, roots_of
from lethe.cli.opening import Opened, namespace_findings, open_table, resolved, table_options
from lethe.cli.output import (
    STYLES,
    json_option,
    print_json,
    print_lines,
    working,
)
from lethe.files.bounds import FileBounds
from lethe.iceberg import catalogs
from lethe.iceberg.facts import data_files
from lethe.ledger.ledger import get_many
from lethe.storage.object_store import open_store


def examine(opened: Opened, wanted_column: str) -> Examined:
    """A damaged ledger raises nothing: it is in the answer.

    Raises:
        Exception: What the catalog or the storage raises if unavailable.
    """
    facts, table = opened.facts, opened.table
    column = table.schema().find_column_name(facts.batch_field_id) if facts.batch_field_id is not None else None
    mode_key = names.METRICS_MODE.format(column=column or wanted_column)
    default = facts.properties.get("write.metadata.metrics.default", DEFAULT_METRICS)
    files = data_files(table, facts.head_id, facts.batch_field_id) if facts.batch_field_id is not None else []
    roots = roots_of(opened)
    folder = ledger_store.ledger_folder(facts.location)
    listed = open_store(folder, opened.properties).list(folder)
    return Examined(
        table=opened.name,
        location=facts.location,
        format_version=facts.format_version,
        head_id=facts.head_id,
        snapshots=facts.snapshots,
        wanted_column=wanted_column,
        remembered_field_id=facts.remembered_field_id,
        batch_field_id=facts.batch_field_id,
        column=column,
        sorted_by_batch=facts.sorted_by_batch,
        metrics_mode=facts.properties.get(mode_key, default),
        claim=facts.claim,
        ledger_since=facts.ledger_since,
        files=tuple(files),
        unsorted=_unsorted(opened),
        known_bounds=_known_bounds(opened, files),
        lost=roots.lost,
        unreadable=tuple(roots.broken.values()),
        needed=roots.files,
        listed=tuple(ListedFile(name_of(o.key), o.modified) for o in listed),
        batches=_batches(opened),
    )


def _batches(opened: Opened) -> ExaminedBatches | None:
    catalog, _, table_name = opened.name.partition(".")
    name = batches_table.name_of(opened.name)
    try:
        table = batches_table.find(catalogs.load(catalog), table_name)
    except InputError as e:
        return ExaminedBatches(name, conflict=e.message)
    if table is None:
        return None
    shown = batches_table.shown(table)
    if shown is None:
        return ExaminedBatches(name)
    try:
        loaded = opened.load_ledger()
    except LedgerError:
        return ExaminedBatches(name, version=shown.version)  # `Roots` says what is wrong with it
    current = (shown.table_uuid, shown.ledger) == (opened.facts.uuid, loaded.resolution.pointer or "")
    agrees = shown.totals.agree_with(loaded.ledger.states)
    return ExaminedBatches(name, current=current, version=shown.version, agrees=agrees)


def _unsorted(opened: Opened) -> frozenset[str]:
    """The head's data files whose sort order id is not the table's."""
    table = opened.table
    order, head = table.sort_order(), table.current_snapshot()
    if not order.fields or head is None:
        return frozenset()
    return frozenset(
        entry.data_file.file_path
        for manifest in head.manifests(table.io)
        if manifest.content == ManifestContent.DATA
        for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=True)
        if entry.data_file.sort_order_id != order.order_id
    )


def _known_bounds(opened: Opened, files: list[FileBounds]) -> frozenset[str]:
    """The bounds of files that are ids of batches in the ledger."""
    bounds = {b for f in files for b in (f.lower, f.upper) if b is not None}
    try:
        return frozenset(get_many(opened.ledger().batches, bounds))
    except LedgerError:
        return frozenset()  # `Roots` says what is wrong with it


@click.command()
@partial(table_options, is_required=False)
@click.option(
    "--cluster",
    is_flag=True,
    help="Examine no table, but the Datasets, Restatements, VacuumPolicies and Leases of the namespace.",
)
@click.option(
    "--grace-hours",
    type=click.FloatRange(min=0),
    default=24,
    show_default=True,
    help="Report a ledger file that no snapshot needs only if it is older. A younger file may belong to a running commit.",
)
@json_option
@click.pass_context
def doctor(
    context: click.Context,
    table: str | None,
    cluster: bool,
    grace_hours: float,
    as_json: bool,
    batch_column: str | None,
    where: Mapping[str, Any],
) -> None:
    """Examine a table, or with --cluster a namespace, and say what to do about each problem.

    Exit code 1 if there is an error or a warning.

    Looks for: bare heads; lost ledgers; missing and orphaned ledger files; a dropped or renamed batch column; unsorted data
    files and data files without exact bounds; too many snapshots. To check the content of the ledgers, use
    `lethe ledger verify`.
    """
    if cluster == bool(table):
        raise click.UsageError("Name a table or a Dataset, or --cluster.")
    findings: Sequence[Finding]
    if table is None:
        with working("examining the namespace"):
            namespace, findings = namespace_findings(where)
        subject = {"namespace": namespace}
    else:
        with resolved(table, batch_column, where) as (name, column), working(f"examining {name}"):
            found = examine(open_table(name, column), column)
            findings = diagnose(found, datetime.now(UTC), timedelta(hours=grace_hours))
        subject = {"table": name}
    if as_json:
        print_json({**subject, "healthy": is_healthy(findings), "findings": [asdict(f) for f in findings]})
    else:
        for f in findings:
            level = f.level.value
            print_lines([Text().append(level, STYLES.get(level, "")).append(f" {f.code}: {f.what}")])
            if f.do:
                click.echo(f"    {f.do}")
    context.exit(0 if is_healthy(findings) else 1)
