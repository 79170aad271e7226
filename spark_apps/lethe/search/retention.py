"""Which rows of a table a vacuum removes because they are too old. Pure: metadata and the ledger in, values out."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta

from pyiceberg.expressions import LessThan
from pyiceberg.expressions.literals import DateLiteral, Literal, TimestampLiteral
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema

from lethe.base.errors import InputError
from lethe.contract.run import RetentionSpec
from lethe.files.bounds import Age, FileBounds, age_of, cutoff_day, due_time
from lethe.files.values import ValueType
from lethe.iceberg.column_path import NoColumn
from lethe.iceberg.conditions import RowCondition
from lethe.iceberg.time_column import TimeColumn
from lethe.ledger.ledger import BatchEntry, BatchState, Ledger, get_many
from lethe.ledger.tombstone import META_PARTITIONS, Tombstone


@dataclass(frozen=True)
class Retention:
    """The rule of a run, for one table."""

    spec: RetentionSpec
    cutoff: date
    """Rows with an earlier time than this UTC day are too old."""
    column: TimeColumn | None = None
    """None: the ages of batches decide."""
    batches: tuple[Tombstone, ...] = ()
    """The batches that are too old, in the form of tombstones, which the ledger does not have."""
    next_cutoff: date | None = None
    """The first cutoff at which other batches are too old; None: unknown, or none will be."""

    @property
    def cutoff_time(self) -> int:
        """The first time that is not too old, as Iceberg stores the column."""
        assert self.column is not None
        return self.column.start_of(self.cutoff)

    def age_of(self, file: DataFile, bounds: FileBounds) -> Age:  # noqa: ARG002
        """Whether retention removes a live data file, some of its rows, or nothing of it.

        Every file that loses rows for their age passes here, unless `batches` names them. Holds are not considered.

        Args:
            bounds: Of the batch column.
        """
        return Age.YOUNG if self.column is None else age_of(self.column.times_of(file), self.cutoff_time)

    def condition(self, schema: Schema) -> RowCondition | None:
        """True for each row whose time is too old; None: the ages of batches decide.

        Args:
            schema: Of the table, now.

        Raises:
            InputError: `InvalidRead`, if the column is gone or has another type.
        """
        if self.column is None:
            return None
        is_date = self.column.type is ValueType.DATE
        limit: Literal[int] = DateLiteral(self.cutoff_time) if is_date else TimestampLiteral(self.cutoff_time)
        return RowCondition.of(schema, LessThan(self.spec.column, limit))  # type: ignore[call-arg]

    def next_cutoff_of(self, file: DataFile) -> date | None:
        """The first cutoff at which a row of a file without too old rows may be too old; None: unknown, or none."""
        if self.column is None:
            return None
        lower = self.column.times_of(file).lower
        day = self.column.day_of(lower) if lower is not None else None
        return day + timedelta(days=1) if day is not None and day < date.max else None


def retention_of(
    spec: RetentionSpec,
    schema: Schema,
    specs: Mapping[int, PartitionSpec],
    ledger: Ledger,
    field_id: int,
    now: datetime,
    table: str,
) -> Retention:
    """The rule for a table.

    The cutoff is that of the spec, or that of the own clock if it is earlier: a clock that is ahead removes no row too early.

    Args:
        field_id: Of the batch column.
        table: Its name, for messages.

    Raises:
        InputError: `InvalidRetention`: the table has no such column, or it has no time.
    """
    retention = Retention(spec, min(spec.cutoff, cutoff_day(now, spec.max_age_days)))
    if spec.column:
        try:
            return replace(retention, column=TimeColumn.of(schema, specs, spec.column))
        except NoColumn as e:
            text = f"{table}: spec.retention.column of the VacuumPolicy is {spec.column!r}, {e}. No row was removed for its age."
            raise InputError("InvalidRetention", text) from None
    start = due_time(retention.cutoff, 0)
    promoted = [b for b in ledger.batches.values() if b.state is BatchState.PROMOTED]
    young = min((b.time for b in promoted if b.time >= start), default=None)
    return replace(
        retention,
        batches=expired_batches(ledger, field_id, [b for b in promoted if b.time < start]),
        next_cutoff=None if young is None else young.astimezone(UTC).date() + timedelta(days=1),
    )


def expired_batches(ledger: Ledger, field_id: int, too_old: Collection[BatchEntry]) -> tuple[Tombstone, ...]:
    """The batches whose rows are removed for their age, in the form of tombstones. The ledger keeps them as promoted.

    The rows of a batch that was taken back are hidden by its tombstone already.

    Args:
        field_id: Of the batch column.
        too_old: Promoted batches.
    """
    hidden = get_many(ledger.tombstones, [(field_id, b.id) for b in too_old])
    return tuple(
        Tombstone(b.id, field_id, b.time, meta={META_PARTITIONS: "\n".join(b.partitions)} if b.partitions else {})
        for b in too_old
        if (field_id, b.id) not in hidden
    )
