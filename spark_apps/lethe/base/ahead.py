"""Works ahead of its caller in threads, within limits on what is in memory."""

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import nullcontext
from typing import TypeVar

T = TypeVar("T")
R = TypeVar("R")


def ahead(
    work: Callable[[T], R],
    items: Iterable[T],
    at_once: int,
    *,
    bytes_of: Callable[[T], int] = lambda _: 0,
    bytes_at_most: int = 0,
    pool: Executor | None = None,
) -> Iterator[tuple[T, R]]:
    """Do the work for the next items while the caller uses the results of those before.

    The next item is begun when a result has been used, so that a slow one delays only those after it.

    Args:
        at_once: How many results there are at a time, done or not.
        bytes_of: What the result of an item takes.
        bytes_at_most: What the results take together. An item that takes more is begun when no other waits.
        pool: Its threads are used. None: threads of its own.

    Returns:
        Each item with its result, in the order of the items.

    Raises:
        Exception: What `work` raises, at the item's turn.
    """
    left, waiting, taken = iter(items), deque[tuple[T, int, Future[R]]](), 0
    following = next(left, None)
    with nullcontext(pool) if pool else ThreadPoolExecutor(at_once, thread_name_prefix="lethe-ahead") as threads:
        try:
            while True:
                while following is not None and len(waiting) < at_once:
                    size = bytes_of(following)
                    if waiting and taken + size > bytes_at_most:
                        break
                    waiting.append((following, size, threads.submit(work, following)))
                    taken += size
                    following = next(left, None)
                if not waiting:
                    return
                item, size, result = waiting.popleft()
                yield item, result.result()
                taken -= size
        finally:
            for _, _, result in waiting:
                result.cancel()
