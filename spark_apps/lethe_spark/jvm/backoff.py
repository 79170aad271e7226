"""Pauses between attempts of a writer that lost a race. I/O: it sleeps."""

import random
import time
from typing import Final

ATTEMPTS: Final = 12
_FIRST_SECONDS: Final = 0.1
_LONGEST_SECONDS: Final = 2.0


def wait_before(attempt: int) -> None:
    """Wait before the second or a later attempt. Full jitter, so that two writers that collided do not collide again."""
    time.sleep(random.uniform(0, min(_LONGEST_SECONDS, _FIRST_SECONDS * 2 ** min(attempt - 2, 10))))
