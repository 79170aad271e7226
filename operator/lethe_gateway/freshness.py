"""How fresh an answer is. Pure."""

from datetime import datetime

from pydantic import Field

from lethe_gateway.document import Document


class ResourceFreshness(Document):
    """Of an answer from the API server."""

    read_time: datetime = Field(description="When the resources were read.")
    resource_version: str | None = Field(default=None, description="The version of the resource or the list.")


class TableFreshness(Document):
    """Of an answer from a table of batches and a ledger."""

    read_time: datetime = Field(description="When the catalog was last asked for the current state of the table.")
    snapshot_id: int | None = Field(
        default=None, description="The snapshot of the table of batches that is shown. Absent: it is empty."
    )
    ledger_version: int | None = Field(
        default=None, description="The version of the ledger that the table of batches shows."
    )
    head_ledger_version: int = Field(description="The version of the ledger of the table's head.")
    commits_behind: int | None = Field(
        default=None,
        description="Commits of the ledger that the table of batches does not show yet. Absent: it shows another lineage.",
    )
    listed_time: datetime | None = Field(
        default=None, description="When a consolidation last listed the buffer: buffered batches are as of then."
    )


def commits_behind(shown: int | None, head: int) -> int | None:
    """None: the version that is shown is unknown, or newer than that of the head, as after a rollback of the table."""
    return head - shown if shown is not None and shown <= head else None
