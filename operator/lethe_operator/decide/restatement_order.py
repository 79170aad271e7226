"""In which order the Restatements of a Dataset go. Pure."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush

from lethe_operator.decide.restatement import Standing
from lethe_operator.resources.restatement import Restatement


def in_order(restatements: Iterable[Restatement]) -> tuple[Restatement, ...]:
    """Dependencies first (a replacement id among another's batchIds; what is undone), then by creation, then by name.
    O(n log n)."""
    oldest_first = sorted(restatements, key=lambda r: (r.created, r.meta.name))
    made_by = {r.spec.replacement.batch_id: n for n, r in enumerate(oldest_first) if r.spec.replacement}
    named = {r.meta.name: n for n, r in enumerate(oldest_first)}
    undone = [
        {named[r.spec.undoes.name]} if r.spec.undoes and r.spec.undoes.name in named else set() for r in oldest_first
    ]
    waits_for = [
        ({made_by[i] for i in r.spec.batch_ids if i in made_by} | undone[n]) - {n} for n, r in enumerate(oldest_first)
    ]
    freed_by: dict[int, list[int]] = {}
    for n, others in enumerate(waits_for):
        for other in others:
            freed_by.setdefault(other, []).append(n)
    free = [n for n, others in enumerate(waits_for) if not others]  # sorted, so a heap
    left = dict.fromkeys(range(len(oldest_first)))
    ordered: list[Restatement] = []
    while left:
        # A circle: nobody can be right, so the oldest goes.
        chosen = heappop(free) if free else next(iter(left))
        if chosen not in left:
            continue
        del left[chosen]
        ordered.append(oldest_first[chosen])
        for n in freed_by.get(chosen, ()):
            waits_for[n].discard(chosen)
            if not waits_for[n] and n in left:
                heappush(free, n)
    return tuple(ordered)


def depends_on(restatement: Restatement, earlier: Sequence[tuple[Restatement, Standing]]) -> Restatement | None:
    """The Restatement before this one whose replacement this one restates, while it still waits or runs."""
    return next(
        (
            other
            for other, standing in earlier
            if standing.waits
            and other.spec.replacement
            and other.spec.replacement.batch_id in restatement.spec.batch_ids
        ),
        None,
    )
