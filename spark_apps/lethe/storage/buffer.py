"""Lists the batches in a buffer and deletes their objects. I/O."""

from collections.abc import Callable, Iterable, Iterator, Mapping

from lethe.buffer.batch import BufferedBatch, ListedObject, NoBatch
from lethe.buffer.layout import Layout, folders_of, is_of_batch, layout_of
from lethe.contract.settings import BufferLayout
from lethe.ledger.ledger import BufferedObject
from lethe.storage.object_store import ObjectStore, open_store


class Buffer:
    """The buffer of one Dataset."""

    def __init__(self, uri: str, layout: Layout, store: ObjectStore) -> None:
        self.uri = uri
        self._layout = layout
        self._store = store

    def folders(self, on_object: Callable[[], None]) -> Iterator[BufferedBatch | NoBatch]:
        """List batches, complete or not, and other folders and files, in the order of the store. Duplicate ids are not detected.

        Args:
            on_object: Called for each object that the store lists. An exception from it ends the listing.
        """

        def objects() -> Iterator[ListedObject]:
            for found in self._store.list(self.uri, hidden=False):
                on_object()
                yield found

        return folders_of(objects(), self.uri, self._layout)

    def folder(self, name: str) -> BufferedBatch | NoBatch | None:
        """Return the folder or file of this name; None: it does not exist."""
        uri = f"{self.uri.rstrip('/')}/{name}"
        objects = filter(None, (self._store.head(uri),)) if self._layout.of_files else self._store.list(uri)
        return next(folders_of(objects, self.uri, self._layout), None)

    def delete(self, objects: Iterable[BufferedObject]) -> int:
        """Delete the objects that belong to batches and are unchanged since the listing. Return how many no longer exist."""
        return self._store.delete([o for o in objects if self.is_of_batch(o.key)])

    def is_of_batch(self, key: str) -> bool:
        """Whether, with the declared layout, only an object of a batch can have this name."""
        return is_of_batch(key, self.uri, self._layout)


def open_buffer(
    uri: str, batch_column: str, properties: Mapping[str, str], layout: BufferLayout = BufferLayout.DIRECTORY
) -> Buffer:
    """Raises: InputError (`UnsupportedScheme`)."""
    return Buffer(uri, layout_of(layout, batch_column), open_store(uri, properties))
