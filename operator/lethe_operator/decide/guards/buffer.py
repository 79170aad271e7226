"""Whether Lethe may change a Dataset's buffer and table: not local, not part of a table, not claimed by another Dataset. Pure.

A rejected buffer stops every run of the Dataset, and nothing in it is moved or deleted. Each run checks again.
"""

from collections.abc import Iterable

from lethe.buffer.digest import BufferDigest
from lethe.guards import rejections as guards
from lethe.guards.claim import Owner
from lethe.guards.rejections import Around, Contents
from lethe.uri import overlap

from lethe_operator.reasons import Reason
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import NoTable, TableView, Unavailable, World
from lethe_operator.settings import Settings

Found = tuple[str, str]  # reason, message


def rejection(dataset: Dataset, world: World, settings: Settings) -> Found | None:
    """Why Lethe may not change the buffer; None: no reason is known."""
    buffer, uri = world.buffer, dataset.spec.buffer.uri
    field = f"Dataset {dataset.meta.name}: spec.buffer.uri"
    known = guards.in_table(field, uri, table_places(dataset, world)) or guards.above_warehouse(
        field, uri, warehouses(dataset, world)
    )
    if known is not None:
        return Reason.BUFFER_HOLDS_TABLE, f"{known} Nothing in it was moved or deleted."
    if isinstance(buffer, Unavailable):
        return (buffer.reason, buffer.message) if buffer.reason in guards.BUFFER_REASONS else None
    if not isinstance(buffer, BufferDigest) or isinstance(world.table, Unavailable):
        return None
    found = guards.buffer_rejection(
        uri,
        owner(dataset, world, settings),
        buffer.around or Around(),
        Contents(buffer.unrelated if buffer.around else 0, buffer.unrelated_names, buffer.tables),
        dataset.spec.buffer.adopt,
    )
    return (found.reason, f"Dataset {dataset.meta.name}: {found.message}") if found else None


def owner(dataset: Dataset, world: World, settings: Settings) -> Owner:
    """As whom the Dataset claims its buffer."""
    meta = dataset.meta
    table_uuid = world.table.uuid if isinstance(world.table, TableView) else ""
    return Owner(meta.namespace, meta.name, meta.uid, table_uuid, settings.cluster)


def table_places(dataset: Dataset, world: World) -> tuple[str, ...]:
    """The locations of the tables of the other Datasets in the same store, as their statuses show them."""
    return tuple(
        str(location)
        for other in _same_store(dataset, world)
        if (location := (other.status.get("table") or {}).get("location"))
        and _uuid(other) != (world.table.uuid if isinstance(world.table, TableView) else "")
    )


def table_in_another(dataset: Dataset, world: World) -> str | None:
    """Why Lethe may not change the table: its folders overlap those of an older Dataset's table. None: they do not."""
    places = own_places(dataset, world.table)
    own = world.table.uuid if isinstance(world.table, TableView) else ""
    for other in _same_store(dataset, world):
        location = str((other.status.get("table") or {}).get("location") or "")
        if not location or _uuid(other) == own or age(other) > age(dataset):
            continue
        if inside := next((p for p in places if overlap(p, location)), None):
            return (
                f"Dataset {dataset.meta.name}: the table {dataset.spec.table.name} keeps files in {inside}, which overlaps "
                f"{location}, the location of the table of the older Dataset {other.meta.full_name}. A clean-up of one table "
                "could delete files of the other, so no run starts. Move this table to its own folder."
            )
    return None


def age(dataset: Dataset) -> tuple[str, str]:
    """The sort key of Datasets, oldest first."""
    created = dataset.meta.creation_timestamp
    return (created.isoformat() if created else "", dataset.meta.full_name)


def own_places(dataset: Dataset, table: TableView | NoTable | Unavailable) -> tuple[str, ...]:
    """The folders with the files of the Dataset's table."""
    if isinstance(table, TableView):
        return (table.location, *table.places)
    create = dataset.spec.table.create
    asked = create.properties.get("location", "") if isinstance(table, NoTable) and create else ""
    return (asked,) if asked else ()


def _uuid(other: Dataset) -> str:
    return str((other.status.get("table") or {}).get("uuid") or "")


def _same_store(dataset: Dataset, world: World) -> Iterable[Dataset]:
    return in_same_store(dataset, world, (*world.neighbours, *world.elsewhere))


def in_same_store(dataset: Dataset, world: World, others: Iterable[Dataset]) -> Iterable[Dataset]:
    """The other Datasets without those whose catalog keeps its files on another S3 server."""
    own = world.catalogs.get(dataset.spec.table.catalog)
    for other in others:
        theirs = world.catalogs.get(other.spec.table.catalog)
        if own is None or theirs is None or own.store == theirs.store:
            yield other


def warehouses(dataset: Dataset, world: World) -> tuple[str, ...]:
    """The warehouses of the catalogs in the same store as this Dataset."""
    own = world.catalogs.get(dataset.spec.table.catalog)
    return tuple(c.warehouse for c in world.catalogs.values() if c.warehouse and (own is None or c.store == own.store))
