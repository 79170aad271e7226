"""The spec of a VacuumPolicy. Pure."""

from typing import Annotated

from pydantic import Field

from lethe.contract.kubernetes import Bytes, Labels, above_zero
from lethe.contract.schema import ApiModel, Int32, Required, Rule, between, items, keywords, length
from lethe.contract.settings import Approval, LabelOperator, RetentionBy


class Requirement(ApiModel):
    """One requirement."""

    cel_rules = (
        Rule(
            "(self.operator in ['In', 'NotIn']) == (has(self.values) && size(self.values) > 0)",
            "values is required when operator is In or NotIn, and only then allowed",
            ".values",
        ),
    )

    key: Annotated[str, length(1, 317)]
    """The label's key."""
    # A text: a requirement with an operator that this version does not know selects nothing.
    operator: Annotated[str, keywords(enum=tuple(o.value for o in LabelOperator))]
    """How the label's value relates to values."""
    values: Annotated[tuple[Annotated[str, length(maximum=63)], ...], items(maximum=64)] = ()
    """The values to compare with, for In and NotIn."""


class Selector(ApiModel):
    """Selects Datasets of the same namespace by their labels. Empty selects all of them."""

    match_labels: Labels = Field(default_factory=dict)
    """Labels that a Dataset must have, all of them."""
    match_expressions: Annotated[tuple[Requirement, ...], items(maximum=64)] = ()
    """Requirements on labels, all of which a Dataset must meet."""


class Triggers(ApiModel):
    """What makes a vacuum due. Any one suffices; one that is not set never fires."""

    active_tombstones: Annotated[int, between(1, 100_000_000)] | None = None
    """A vacuum is due when the table has at least this many active tombstones."""
    tombstoned_rows_percent: Annotated[Int32, between(1, 100)] | None = None
    """A vacuum is due when at least this share of the table's rows is hidden by tombstones."""
    oldest_tombstone_age_seconds: Annotated[int, between(0, 315_360_000)] | None = None
    """A vacuum is due when the oldest active tombstone is at least this old."""
    evict_by_lead_seconds: Annotated[int, between(0, 31_536_000)] = 86_400
    """A vacuum is due this many seconds before an evictBy, or earlier if previous vacuums took longer. Such a vacuum does
    not wait for the window.
    """


class Retention(ApiModel):
    """Remove rows that are too old.

    A row is too old if its time is before the UTC day that is maxAgeDays days before today. Rows without a time never are.
    """

    cel_rules = (Rule("has(self.column) != has(self.by)", "set exactly one of column and by", ".column"),)

    column: Annotated[str, length(1, 255)] | None = None
    """The column with the time of a row: a date, a timestamp, or a timestamp with a zone. A field of structs is named as
    `booking.time`. A timestamp without a zone is taken as UTC.
    """
    by: RetentionBy | None = None
    """BatchAge: the time of a row is that at which its batch was promoted. Rows of batches that Lethe did not promote have no
    time.
    """
    max_age_days: Annotated[Int32, between(1, 36_500)]
    """How many days rows are kept."""


class Window(ApiModel):
    """When vacuums may run. If unset, at any time.

    A run that is active when the window closes finishes its current step.
    """

    schedule: Annotated[str, length(1, 128, pattern=r"^\S+\s+\S+\s+\S+\s+\S+\s+\S+$")]
    """When the window opens, as five cron fields. An opening in the hour that clocks skip comes right after it."""
    time_zone: Annotated[str, length(1, 64)] = "UTC"
    """The IANA time zone of schedule."""
    duration_seconds: Annotated[int, between(60, 604_800)]
    """How many seconds the window stays open, in elapsed time."""


class VacuumLimits(ApiModel):
    """Limits of each run, and of the number of runs."""

    max_bytes_per_run: Annotated[Bytes, above_zero("100Gi")] | None = None
    """The largest number of bytes of data files that a run rewrites, the files with the most tombstones per byte first.
    If unset, all files that are due.
    """
    max_run_seconds: Annotated[int, between(60, 604_800)] | None = None
    """A run starts no step after this many seconds and leaves the rest to the next run. In any case it starts no step
    after 80 % of the operator's time limit for runs.
    """
    concurrent_runs: Annotated[Int32, between(1, 100)] | None = None
    """The largest number of vacuums of this policy at the same time. Datasets with a near evictBy go first, then those
    that have waited longest. If unset, without limit.
    """


class OrphanFiles(ApiModel):
    """Remove files below the table's location that no snapshot and no ledger names. If unset, these files are kept."""

    older_than_seconds: Annotated[int, between(86_400, 315_360_000)] = 259_200
    """Remove only files that are at least this many seconds old. Set it longer than the time between the first file and
    the commit of any writer.
    """


class MaintenanceSpec(ApiModel):
    """What a vacuum does in addition to purging, within its limits."""

    rewrite_manifests: bool = False
    """Rewrite manifests so that files with similar batch ids are in few manifests."""
    remove_orphan_files: OrphanFiles | None = None
    compact_small_files: bool = False
    """Merge small neighbouring data files in the order of the batch column."""


class VacuumPolicySpec(ApiModel):
    """Which Datasets, when, and how much at once."""

    dataset_selector: Annotated[Selector, Required()] = Selector()
    triggers: Annotated[Triggers, Required()] = Triggers()
    retention: Retention | None = None
    """Which rows are removed because of their age. If unset, none."""
    window: Window | None = None
    limits: VacuumLimits = VacuumLimits()
    approval: Approval = Approval.AUTOMATIC
    """Manual plans a due vacuum and waits for the annotation lethe.dev/approve on the Dataset before it purges."""
    expire_snapshots: bool = True
    """Expire snapshots after a vacuum as the Dataset's spec.snapshots says, which removes the purged files from storage."""
    maintenance: MaintenanceSpec = MaintenanceSpec()

    @property
    def is_manual(self) -> bool:
        """Whether a due vacuum is only planned, until an annotation on the Dataset approves the plan."""
        return self.approval is Approval.MANUAL
