"""In which order requests go that were made of one table. Pure; the operator and the runs ask the same.

A request waits for whatever brings about what it needs: a replacement comes before the request that restates it, a restatement
before its Undo. Otherwise the oldest goes first.
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
    """What decides where a request stands: its age, what it `brings` about and what it `needs` that others may bring."""

    created: datetime
    name: str
    brings: Collection[Thing]
    needs: Collection[Thing]


def place(
    created: datetime, name: str, key: str, batch_ids: Iterable[str], replacement: str | None, undoes: str | None
) -> Dependencies:
    """The place of a Restatement.

    Args:
        key: What an Undo calls it, as `undoes` of the other says.
        replacement: The id of the batch that it brings in.
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
    """Whatever brings something before whatever needs it, then by creation, then by name. O(n log n).

    What several bring, such as two replacements of one id, is there once all of them went.
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
        # A circle: nobody can be right, so the oldest goes.
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
