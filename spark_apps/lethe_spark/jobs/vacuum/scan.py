"""SCAN of a vacuum run. I/O: reads the ledger and manifests, no data."""

from datetime import UTC, datetime

from lethe.contract.run import VacuumSpec
from lethe.search.vacuum_survey import Survey, traits_of
from lethe.search.vacuum_survey import survey as survey_of

from lethe_spark.commit.table_state import Base


def survey(base: Base, spec: VacuumSpec) -> Survey | None:
    """Survey the head. Returns: None, if no tombstone is active and no erasure has rows left to purge."""
    head = base.head()
    if head is None:
        return None
    return survey_of(head, base.ledger, base.field_id, traits_of(base.iceberg, base.field_id), spec, datetime.now(UTC))
