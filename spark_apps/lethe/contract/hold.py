"""`spec.holds` of a Dataset: rows that must not be purged or erased for now. Pure.

`lethe.iceberg.holds` applies their filters. A run gets the active holds in its `run.json`. A filter may name a person: no log,
event, status or file name contains it, only the name of its hold.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Annotated, Final

from pydantic import AwareDatetime, Field

from lethe.contract.schema import ApiModel, length

_TIME: Final = r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}([.][0-9]+)?(Z|[+-][0-9]{2}:[0-9]{2})$"
"""RFC 3339: with a time zone, because the API server takes some texts without one."""


class HoldSpec(ApiModel):
    """Rows that no vacuum purges, and no Erase or Redact changes, until the hold ends or is removed. A Revert hides them."""

    name: Annotated[str, length(1, 63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """The name of the hold. Statuses, events and logs show it, so it must not name a person."""
    filter: Annotated[str, length(1, 4096)] = Field(default="", repr=False)
    """A condition on the columns of the table, in the syntax of filters: comparisons of columns with values, IN, IS NULL,
    LIKE 'prefix%', AND, OR, NOT. The hold covers the rows for which it is true. If unset, it covers all rows.
    """
    until: Annotated[AwareDatetime, length(20, 40, pattern=_TIME)] | None = None
    """When the hold ends by itself, such as 2027-03-31T00:00:00Z. If unset, it lasts until it is removed."""
    reason: Annotated[str, length(maximum=1024)] = ""
    """Why the rows are held, such as the number of a case. It must contain no personal data."""

    def is_active(self, now: datetime) -> bool:
        """Whether the hold has not ended by itself."""
        return self.until is None or self.until > now


def active_holds(holds: Iterable[HoldSpec], now: datetime) -> tuple[HoldSpec, ...]:
    """The holds that have not ended, as runs get them: by name, and without reasons."""
    kept = (h.model_copy(update={"reason": ""}) for h in holds if h.is_active(now))
    return tuple(sorted(kept, key=lambda h: h.name))


def named(holds: Iterable[HoldSpec]) -> str:
    """The names of holds with their ends, for messages: `hold a until 2027-03-31T00:00:00Z, hold b until it is removed`."""
    return ", ".join(f"hold {h.name} {_until(h.until)}" for h in holds)


def _until(until: datetime | None) -> str:
    return f"until {until:%Y-%m-%dT%H:%M:%SZ}" if until is not None else "until it is removed"
