"""What the change of a resource does to tables, as a value. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True)
class DeletedRows:
    """What Restatements delete."""

    batches: Mapping[tuple[str, str], int] = field(default_factory=dict)
    """Rows by the name of the table and the batch id, as far as the ledger knows them."""
    files: Mapping[str, int] = field(default_factory=dict)
    """Sizes in bytes, by path, of the files that may contain the rows, by their bounds."""

    def __add__(self, other: "DeletedRows") -> "DeletedRows":
        """Both together: a batch or a file of both counts once."""
        return DeletedRows({**self.batches, **other.batches}, {**self.files, **other.files})

    @property
    def rows(self) -> int:
        """The rows of all batches, without those that the ledger does not know."""
        return sum(self.batches.values())

    @property
    def bytes(self) -> int:
        """The size of all files: the upper limit of what is deleted, because files may also have rows that stay."""
        return sum(self.files.values())


@dataclass(frozen=True)
class Effect:
    """What happens after the apply."""

    lines: tuple[tuple[str, str], ...] = ()
    """For people: a subject, and a sentence about it."""
    document: Mapping[str, Any] = field(default_factory=dict)
    """For programs."""
    deleted: DeletedRows | None = None
    """None: it deletes nothing, or how much is unknown."""
    unknown: str = ""
    """Why figures are missing; "": none is."""
    problem: str = ""
    """Why Lethe would refuse the resource; "": it would not."""


NO_EFFECT: Final = Effect()


def many(number: int, what: str) -> str:
    """1,234 rows, 1 batch."""
    plural = f"{what}es" if what.endswith("ch") else f"{what}s"
    return f"{number:,} {what if number == 1 else plural}"
