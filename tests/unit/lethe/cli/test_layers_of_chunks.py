"""Counting over shared chunks says what folding each list says."""

from hypothesis import given
from hypothesis import strategies as st
from lethe.cli.history import ChunkKeys, Layers
from lethe.ledger.overlay import fold
from lethe.ledger.root import Chunk

chunk_lists = st.lists(st.tuples(st.booleans(), st.frozensets(st.sampled_from("abcdefgh"))), max_size=6)


def folded(chunks: list[Chunk], files: dict[str, ChunkKeys]) -> set[object]:
    return set(fold((c.removes, dict.fromkeys(files[c.file].keys)) for c in chunks)[0])


@given(
    chunk_lists,
    st.lists(st.integers(0, 5), max_size=6, unique=True),
    st.lists(st.integers(0, 5), max_size=6, unique=True),
)
def test_sizes_and_differences_are_those_of_the_folded_sets(
    made: list[tuple[bool, frozenset[str]]], before: list[int], after: list[int]
) -> None:
    files = {
        str(n): ChunkKeys(keys, min(keys, default=None), max(keys, default=None)) for n, (_, keys) in enumerate(made)
    }
    all_chunks = [Chunk(str(n), len(keys), 0, removes) for n, (removes, keys) in enumerate(made)]
    then = [all_chunks[n] for n in sorted(before) if n < len(all_chunks)]
    now = [all_chunks[n] for n in sorted(after) if n < len(all_chunks)]
    layers = Layers(files)

    sizes, changed = (layers.size(then), layers.size(now)), layers.changed(then, now)

    was, is_ = folded(then, files), folded(now, files)
    assert sizes == (len(was), len(is_))
    assert changed == (len(is_ - was), len(was - is_))
