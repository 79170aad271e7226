"""In which order the Restatements of a Dataset go: `lethe.restatement.order` says it. Pure."""

from collections.abc import Iterable

from lethe.restatement import order

from lethe_operator.resources.restatement import Restatement


def in_order(restatements: Iterable[Restatement]) -> tuple[Restatement, ...]:
    """What others depend on first (a replacement id among another's batchIds; what is undone), then by creation, then by
    name. O(n log n)."""
    return order.in_order(restatements, _place)


def _place(restatement: Restatement) -> order.Dependencies:
    spec, name = restatement.spec, restatement.meta.name
    undoes = spec.undoes.name if spec.undoes else None
    return order.place(restatement.created, name, name, restatement.batch_ids, restatement.brings, undoes)
