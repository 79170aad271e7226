"""Arguments and options that several commands share, and the types of their values."""

from datetime import UTC, datetime
from typing import Any

import click

table_argument = click.argument("table")
json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON instead of a table.")
output_option = click.option(
    "-o", "--output", type=click.Choice(["table", "wide", "json", "yaml", "name"]), default="table", show_default=True
)
batch_column_option = click.option(
    "--batch-column",
    default="batch_id",
    show_default=True,
    help="The batch column, for a table that Lethe has not prepared. A prepared table has it in a table property.",
)


class Time(click.ParamType):
    """An ISO 8601 time with a time zone."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            time = datetime.fromisoformat(value)
        except ValueError:
            self.fail(f"{value!r} is not an ISO 8601 time, for example 2026-03-01T12:00:00Z", param, ctx)
        if time.tzinfo is None:
            self.fail(f"{value!r} has no time zone. For UTC, write {value}Z", param, ctx)
        return time.astimezone(UTC)


class SnapshotOrTime(Time):
    """A snapshot id, or a time."""

    name = "snapshot|time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if isinstance(value, int):
            return value
        if isinstance(value, str) and value.isdigit():
            return int(value)
        return super().convert(value, param, ctx)
