"""Writes the batches of an epoch into the buffer. I/O: the object store.

Invariant: nothing that exists is overwritten. A batch is complete when `_SUCCESS` is there, which is written last.
"""

import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import pyarrow as pa
import pyarrow.parquet as pq
from lethe.base import names
from lethe.base.ids import batch_folder
from lethe.storage.object_store import ObjectStore

from lethe_inlet.epochs import Counts, Partition, Range, batch_id
from lethe_inlet.messages import Decoded, refusals

DATA_FILE: Final = "messages.parquet"
REFUSED_FOLDER: Final = "_refused"
REFUSED_FILE: Final = "messages.jsonl"


@dataclass(frozen=True)
class Batches:
    """The batches of one Dataset's buffer."""

    store: ObjectStore
    buffer_uri: str
    batch_column: str

    def write(self, partition: Partition, offsets: Range, decoded: Decoded) -> Counts:
        """Write the rows of a partition as a batch, and the refused messages beside the buffer's batches.

        Raises: StoreError, InputError (`UnsupportedStorage`).
        """
        folder = batch_folder(self.batch_column, batch_id(partition, offsets))
        if decoded.refused:
            uri = f"{self._root}/{REFUSED_FOLDER}/{folder}/{REFUSED_FILE}"
            self.store.put_if_absent(uri, refusals(partition, decoded.refused))
        if decoded.rows.num_rows:
            self.store.put_if_absent(f"{self._root}/{folder}/{DATA_FILE}", _parquet(decoded.rows))
            self.store.put_if_absent(f"{self._root}/{folder}/{names.SUCCESS_MARKER}", b"")
        return Counts(rows=decoded.rows.num_rows, refused=len(decoded.refused))

    def are_there(self, ids: Iterable[str]) -> frozenset[str]:
        """Which of these batches are complete in the buffer. Raises: StoreError."""
        return frozenset(i for i in ids if self.store.head(f"{self._folder(i)}/{names.SUCCESS_MARKER}") is not None)

    @property
    def _root(self) -> str:
        return self.buffer_uri.rstrip("/")

    def _folder(self, id: str) -> str:
        return f"{self._root}/{batch_folder(self.batch_column, id)}"


def _parquet(rows: pa.Table) -> bytes:
    file = io.BytesIO()
    pq.write_table(rows, file, compression="zstd", write_page_index=False)
    return file.getvalue()
