"""Sorts the Restatements of a Dataset in the order of `lethe.restatement.order`. Pure."""

from collections.abc import Iterable

from lethe.restatement import order

from lethe_operator.resources.restatement import Restatement


def in_order(restatements: Iterable[Restatement]) -> tuple[Restatement, ...]:
    """Sort by dependency (a Restatement whose replacement another one restates comes before it, and one that is undone before its
    Undo), then by creation time, then by name. O(n log n)."""
    return order.in_order(restatements, _place)


def _place(restatement: Restatement) -> order.Dependencies:
    spec, name = restatement.spec, restatement.meta.name
    undoes = spec.undoes.name if spec.undoes else None
    return order.place(restatement.created, name, name, restatement.batch_ids, restatement.brings, undoes)
