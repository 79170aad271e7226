"""RunEvents of OpenLineage, from the same steps as status events. I/O: reads the ledger.

They have a cursor and a sink of their own, so neither holds up the other.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from lethe.base import names
from lethe.contract.kind import RunFamily

from lethe_operator.decide.publishing.cloud_event import CloudEvent
from lethe_operator.decide.publishing.cursor import Cursor, Move
from lethe_operator.decide.publishing.numbering import Origin, identity
from lethe_operator.decide.publishing.openlineage import LineageCommit, run_event
from lethe_operator.publish.ledger_changes import LedgerVersions

TYPE: Final = "io.openlineage.run-event"
# The folder of the cursor, below that of status events.
FOLDER: Final = f"{names.EVENTS_FOLDER}/openlineage"


@dataclass(frozen=True)
class LineageVersions:
    """The versions of the ledger of one table, with one event for each commit of a run."""

    versions: LedgerVersions
    namespace: str  # of the jobs, in OpenLineage
    buffer: str  # URI

    def events(self, cursor: Cursor, origin: Origin) -> Iterator[CloudEvent]:
        """At most one: versions in between that are gone have none, and neither has a commit of no run."""
        step = cursor.step
        assert step is not None
        snapshot = self.versions.facts.snapshots.get(step.to.snapshot_id or -1)
        if step.move is Move.START or snapshot is None or names.RUN_ID not in snapshot.summary:
            return
        commit = LineageCommit(
            namespace=self.namespace,
            kube_namespace=origin.namespace,
            dataset=origin.name,
            run_id=snapshot.summary[names.RUN_ID],
            family=RunFamily(snapshot.summary.get(names.RUN_KIND, RunFamily.VACUUM)),
            unfinished=names.UNFINISHED in snapshot.summary,
            time=datetime.fromtimestamp(snapshot.timestamp_ms / 1000, UTC),
            snapshot_id=snapshot.id,
            table=self.versions.table.name,
            catalog=self.versions.table.catalog,
            location=self.versions.facts.location,
            buffer=self.buffer,
        )
        contents = self.versions.contents(cursor) if step.move is Move.NEXT else ()
        yield identity(cursor, origin, 0, TYPE, "", run_event(commit, contents))
