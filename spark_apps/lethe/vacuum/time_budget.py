"""Whether a run may still begin something. Pure."""

from datetime import datetime, timedelta
from typing import Final

from lethe.contract.run import VacuumSpec

WINDOW_CLOSED: Final = "WindowClosed"
MAX_RUN_SECONDS: Final = "MaxRunSeconds"


def out_of_time(spec: VacuumSpec, taken: timedelta, now: datetime) -> str:
    """Why a vacuum run must begin nothing more, "" when it may.

    Args:
        taken: How long the run has been at it, by a clock that nobody sets.
    """
    if spec.stop_by is not None and now >= spec.stop_by:
        return WINDOW_CLOSED
    if spec.max_seconds is not None and taken >= timedelta(seconds=spec.max_seconds):
        return MAX_RUN_SECONDS
    return ""
