"""Sorts the requests for one table. Pure. The operator and the runs use the same order.

A request comes after those that it depends on: a replacement before the request that restates it, a restatement before its Undo.
Otherwise the oldest request comes first.
"""

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable
from dataclasses import dataclass
from datetime import datetime
from heapq import heappop, heappush
from typing import TypeAlias, TypeVar

from lethe.contract.run import RestatementRequest

T = TypeVar("T")
Thing: TypeAlias = Hashable


@dataclass(frozen=True)
class Dependencies:
    """What the place of a request in the order depends on."""

    created: datetime
    name: str
    brings: Collection[Thing]  # the batches and requests that exist after it
    needs: Collection[Thing]  # the batches and requests that must exist before it, if another request brings them


def place(
    created: datetime, name: str, key: str, batch_ids: Iterable[str], replacement: str | None, undoes: str | None
) -> Dependencies:
    """The dependencies of a Restatement.

    Args:
        key: Identifies it, as `undoes` of another Restatement does: a name or a request key.
        replacement: The id of the batch that it adds; None: it adds none.
        undoes: None or "": it is not an Undo.
    """
    brings: list[Thing] = [("request", key)]
    if replacement is not None:
        brings.append(("batch", replacement))
    needs: set[Thing] = {("batch", i) for i in batch_ids}
    if undoes:
        needs.add(("request", undoes))
    return Dependencies(created, name, brings, needs)


def place_of(request: RestatementRequest) -> Dependencies:
    made = request.replacement.batch_id if request.replacement else None
    return place(request.creation_time, request.name, request.key, request.batch_ids, made, request.undoes)


def in_order(requests: Iterable[T], place: Callable[[T], Dependencies]) -> tuple[T, ...]:
    """Sort by dependency, then by creation time, then by name. O(n log n).

    If several requests bring the same thing, such as two replacements with one id, all of them come before those that need it.
    """
    placed = sorted(((r, place(r)) for r in requests), key=lambda pair: (pair[1].created, pair[1].name))
    to_come = Counter(thing for _, p in placed for thing in p.brings)
    awaited = [{thing for thing in p.needs if thing in to_come}.difference(p.brings) for _, p in placed]
    awaiting: dict[Thing, list[int]] = {}
    for n, things in enumerate(awaited):
        for thing in things:
            awaiting.setdefault(thing, []).append(n)
    free = [n for n, things in enumerate(awaited) if not things]  # sorted, so a heap
    left = dict.fromkeys(range(len(placed)))
    ordered: list[T] = []
    while left:
        # The rest depends on each other in a circle, so the oldest comes next.
        chosen = heappop(free) if free else next(iter(left))
        if chosen not in left:
            continue
        del left[chosen]
        request, its = placed[chosen]
        ordered.append(request)
        for thing in its.brings:
            to_come[thing] -= 1
            for n in awaiting.get(thing, ()) if not to_come[thing] else ():
                awaited[n].discard(thing)
                if not awaited[n] and n in left:
                    heappush(free, n)
    return tuple(ordered)
