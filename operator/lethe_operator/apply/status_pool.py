"""Many statuses at once. I/O.

The API server answers a write after some milliseconds, and thousands may be due after one run. A few go one after the other.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from lethe_operator.kube import Away, KubeError

THREADS: Final = 8
ONE_BY_ONE: Final = 16
Write = Callable[[], object]


def write_all(writes: Sequence[Write]) -> KubeError | None:
    """Do all of them, in no order; the first error, after all others were tried. When the API server does not answer, the rest
    is left for the next time."""
    failures: list[KubeError] = []

    def attempt(write: Write) -> None:
        if any(isinstance(e, Away) for e in failures):
            return
        try:
            write()
        except KubeError as e:
            failures.append(e)

    if len(writes) <= ONE_BY_ONE:
        for write in writes:
            attempt(write)
    else:
        with ThreadPoolExecutor(THREADS, thread_name_prefix="status") as pool:
            for done in [pool.submit(attempt, write) for write in writes]:
                done.result()
    return failures[0] if failures else None
