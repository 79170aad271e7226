"""The markers of batches are read, and one that may not be read stops no other batch."""

from pathlib import Path

import pytest
from lethe.ingest.references import find_waiting, read_references
from lethe.ingest.shared_folders import open_buffer
from lethe.storage.local_store import LocalStore
from lethe.storage.object_store import DENIED, StoreError

from tests.support.buffers import listing_of


@pytest.mark.parametrize(
    "error", [PermissionError(), StoreError("s3://lake/x", DENIED)], ids=lambda e: type(e).__name__
)
def test_a_marker_that_may_not_be_read_stops_no_other_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    for batch_id in ("A", "B"):
        (tmp_path / f"batch_id={batch_id}").mkdir()
        (tmp_path / f"batch_id={batch_id}" / "p.parquet").write_text("x")
        (tmp_path / f"batch_id={batch_id}" / "_SUCCESS").write_text('{"reference": "dag-7"}')
    read_range = LocalStore.read_range

    def denied(store: LocalStore, uri: str, start: int, size: int) -> bytes | None:
        if "batch_id=A" in uri:
            raise error
        return read_range(store, uri, start, size)

    monkeypatch.setattr(LocalStore, "read_range", denied)
    buffer = open_buffer(f"file://{tmp_path}", "batch_id", {})

    named = read_references(buffer.store, listing_of(buffer).batches)

    assert (named.references, named.denied, named.gone) == ({"B": "dag-7"}, {"A"}, frozenset())
    with pytest.raises(StoreError, match="AccessDenied"):  # a request for all batches of a reference may not miss one
        find_waiting(buffer, {}, {"dag-7"})
