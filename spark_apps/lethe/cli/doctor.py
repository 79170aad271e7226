"""`lethe doctor` reports what is wrong with a table, and what to do."""

from dataclasses import asdict
from datetime import UTC, datetime, timedelta

import click

from lethe.cli.diagnosis import Level, diagnose, is_healthy
from lethe.cli.examination import examine
from lethe.cli.opening import open_table
from lethe.cli.options import batch_column_option, json_option, table_argument
from lethe.cli.output import print_json, working


@click.command()
@table_argument
@click.option(
    "--grace-hours",
    type=click.FloatRange(min=0),
    default=24,
    show_default=True,
    help="Report a ledger file that no snapshot needs only if it is older. A younger file may belong to a running commit.",
)
@json_option
@batch_column_option
@click.pass_context
def doctor(context: click.Context, table: str, grace_hours: float, as_json: bool, batch_column: str) -> None:
    """Examine a table, and say what to do about each problem. Exit code 1 if there is an error or a warning.

    Looks for: bare heads; lost ledgers; missing and orphaned ledger files; a dropped or renamed batch column; unsorted data
    files and data files without exact bounds; too many snapshots. To check the content of the ledgers, use
    `lethe ledger verify`.
    """
    with working(f"examining {table}"):
        found = examine(open_table(table, batch_column), batch_column)
        findings = diagnose(found, datetime.now(UTC), timedelta(hours=grace_hours))
    if as_json:
        print_json({"table": table, "healthy": is_healthy(findings), "findings": [asdict(f) for f in findings]})
    else:
        for f in findings:
            colour = {Level.ERROR: "red", Level.WARNING: "yellow"}.get(f.level)
            click.echo(f"{click.style(f.level.value, fg=colour, bold=bool(colour))} {f.code}: {f.what}")
            if f.do:
                click.echo(f"    {f.do}")
    context.exit(0 if is_healthy(findings) else 1)
