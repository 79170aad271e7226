"""What a run does about buffered files that could not be read: which errors it raises, and what it says. Pure."""

from collections.abc import Sequence

from lethe.base.errors import TransientError
from lethe.contract.result import RefusedBatch
from lethe.decoder.process import NoDecoder
from lethe.ingest.buffer_store import TRANSIENT_MARKER


def reading_failure(error: BaseException) -> TransientError:
    """The error for a failure to read files, here or in Spark's workers, as far as its text shows the cause."""
    text = str(error)
    if TRANSIENT_MARKER in text:
        what = text.split(TRANSIENT_MARKER, 1)[1].splitlines()[0].strip(" :'\"")
        return TransientError(
            "BufferAway", f"a file of the buffer could not be read: {what[:300]}. Nothing was changed."
        )
    if isinstance(error, NoDecoder):
        return TransientError("ReadingFailed", f"{error}. Nothing was changed.")
    return TransientError(
        "ReadingFailed", f"reading the buffered files failed in Spark ({type(error).__name__}); see the driver's log."
    )


def check_some_were_read(unread: Sequence[RefusedBatch], batches: int) -> None:
    """Raises: TransientError, if every batch of the run has a file that could not be read.

    Args:
        batches: The number of batches of the run.
    """
    if unread and len(unread) == batches:
        raise TransientError(unread[0].reason, f"{unread[0].message}. Nothing was changed.")


def why_unread(batch: RefusedBatch) -> str:
    """Why a batch waits, for the message of a run that continued without it."""
    return f"could not be read ({batch.refusal})"
