"""Whether the replacement and the list that a Restatement names may be read: not local, not part of a table. Pure.

The run checks again, and also looks for metadata of tables that the operator does not know.
"""

from collections.abc import Iterator

from lethe.contract.refusal import Refusal
from lethe.guards import rejections as guards

from lethe_operator.decide.guards.buffer import own_places, table_places, warehouses
from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import World
from lethe_operator.resources.restatement import Restatement


def named_uris(restatement: Restatement) -> dict[str, str]:
    """The URIs that a Restatement names, by field."""
    replacement = restatement.spec.replacement
    named = {
        "spec.replacement.uri": replacement.uri if replacement is not None else "",
        "spec.batchIdsFrom.uri": restatement.list_uri,
    }
    return {field: uri for field, uri in named.items() if uri}


def misplaced(restatement: Restatement, dataset: Dataset, world: World) -> Refusal | None:
    """Why the first URI may not be read; None: no reason is known."""
    return next(_misplaced(restatement, dataset, world), None)


def _misplaced(restatement: Restatement, dataset: Dataset, world: World) -> Iterator[Refusal]:
    catalog = dataset.spec.table.catalog
    known = world.catalogs.get(catalog)
    named = named_uris(restatement)
    tables = (*own_places(dataset, world.table), *table_places(dataset, world)) if named else ()
    for field, uri in named.items():
        where = f"Restatement {restatement.meta.name}: {field}"
        local = guards.local(where, uri, catalog, known is None or known.is_local)
        if local is not None:
            yield Refusal(Reason.PLACE_LOCAL, f"{local} Nothing was read.")
        found = guards.in_table(where, uri, tables) or guards.above_warehouse(where, uri, warehouses(dataset, world))
        if found is not None:
            yield Refusal(Reason.PLACE_IN_TABLE, f"{found} Nothing was read.")
