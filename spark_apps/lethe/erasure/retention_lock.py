"""How long a store has to keep an object that is written once, as S3's object lock knows it. Pure."""

from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from lethe.base.errors import InputError


class LockMode(StrEnum):
    """Modes of S3's object lock."""

    GOVERNANCE = "GOVERNANCE"  # who has s3:BypassGovernanceRetention may delete the object before
    COMPLIANCE = "COMPLIANCE"  # no user may, the owner of the account included


@dataclass(frozen=True)
class Retention:
    """No version of the object can be deleted or overwritten until it is so old."""

    mode: LockMode
    days: int  # from the moment at which it is written; 1 or more

    def until(self, written: datetime) -> datetime:
        return written + timedelta(days=self.days)

    def __str__(self) -> str:
        return f"{self.mode}:{self.days}"


def parse_retention(text: str) -> Retention | None:
    """`MODE:DAYS`, such as COMPLIANCE:3650; None of an empty text. Raises: InputError (InvalidRetention)."""
    if not text:
        return None
    mode, _, days = text.partition(":")
    if mode not in tuple(LockMode) or not days.isdecimal() or int(days) < 1:
        raise InputError("InvalidRetention", f"expected GOVERNANCE:DAYS or COMPLIANCE:DAYS, found {text!r}.")
    return Retention(LockMode(mode), int(days))
