"""Whether runs report another version of Lethe than the operator's. Pure."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lethe_operator.decide.actions import Event
from lethe_operator.decide.runs.history import ended_names
from lethe_operator.reasons import Reason
from lethe_operator.resources.observed import ObservedRun


def ended_versions(
    runs: Iterable[ObservedRun], old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]]
) -> frozenset[str]:
    """The versions of the runs that ended since the old status was written; "": of one that reported none.

    Args:
        old: Entries of status.runs, as they were.
        new: The same, now.
    """
    names = ended_names(old, new)
    return frozenset(a.result.version for r in runs for a in r.attempts if a.job in names and a.result is not None)


def skew_event(dataset: str, reported: str, own: str, image: str) -> Event:
    """Tell the user that an image does not match."""
    text = (
        f"A run reported version {reported or 'none (it is older)'} of Lethe, and the operator has {own}. Runs that started "
        f"before an upgrade end with their old image. If new runs report it too, the image {image} of runs is not of the "
        "operator's release: set the chart's values image.operator and image.spark to the same release."
    )
    return Event("Dataset", dataset, Reason.VERSION_SKEW, text, warning=True)
