"""The retention of an object, as in S3's object lock. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from lethe.base.errors import InputError


class LockMode(StrEnum):
    """Modes of S3's object lock."""

    GOVERNANCE = "GOVERNANCE"
    """Users with s3:BypassGovernanceRetention may delete the object earlier."""
    COMPLIANCE = "COMPLIANCE"
    """No user may, not even the owner of the account."""


@dataclass(frozen=True)
class Retention:
    """How long no version of an object can be deleted or overwritten."""

    mode: LockMode
    days: int
    """After it was written; at least 1."""

    def until(self, written: datetime) -> datetime:
        """The time at which the lock of an object ends: exactly `days` times 24 hours after it was written."""
        return written + timedelta(days=self.days)

    def __str__(self) -> str:
        return f"{self.mode}:{self.days}"


def parse_retention(text: str) -> Retention | None:
    """Parse `MODE:DAYS`, such as COMPLIANCE:3650; None for an empty text.

    Raises:
        InputError: InvalidRetention.
    """
    if not text:
        return None
    mode, _, days = text.partition(":")
    if mode not in tuple(LockMode) or not days.isdecimal() or int(days) < 1:
        raise InputError("InvalidRetention", f"expected GOVERNANCE:DAYS or COMPLIANCE:DAYS, found {text!r}.")
    return Retention(LockMode(mode), int(days))
