"""The complete content of a small buffer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lethe.buffer.layout import BufferedBatch, NoBatch
from lethe.contract.settings import BufferLayout
from lethe.ingest.shared_folders import BufferClaims, open_buffer


@dataclass(frozen=True)
class Listing:
    """`invalid`: folders and files that are no batch, each with the reason."""

    batches: tuple[BufferedBatch, ...]
    invalid: Mapping[str, str]

    @classmethod
    def of(cls, folders: Iterable[BufferedBatch | NoBatch]) -> "Listing":
        found = list(folders)
        return cls(
            tuple(f for f in found if isinstance(f, BufferedBatch)),
            {f.folder: f.message for f in found if isinstance(f, NoBatch)},
        )


def listing_of(buffer: BufferClaims) -> Listing:
    return Listing.of(buffer.folders(on_object=lambda: None))


def batches_in(
    uri: str, properties: Mapping[str, str] | None = None, layout: BufferLayout = BufferLayout.DIRECTORY
) -> list[BufferedBatch]:
    """The batches of a buffer whose batch column is `batch_id`."""
    return list(listing_of(open_buffer(uri, "batch_id", properties or {}, layout)).batches)
