"""Rows on their way to the tasks that write them: nothing is lost or reordered, and the work is divided evenly."""

import os
import tempfile
from collections import defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.writing import tasks as spool_module
from lethe.writing.tasks import (
    Block,
    BlockFacts,
    BlockKey,
    Cell,
    Spool,
    blocks_of,
    decode,
    encode,
    plan,
)

MIB = 1024**2
SIZES = st.dictionaries(
    st.builds(BlockKey, st.builds(Cell, st.integers(0, 20), st.integers(0, 20)), st.integers(0, 3), st.integers(0, 3)),
    st.integers(0, 500 * MIB),
    max_size=60,
)


def key(bucket: int, range_: int) -> BlockKey:
    return BlockKey(Cell(bucket, range_), range_, 0)


def loads(sizes: dict[BlockKey, int], tasks: dict[Cell, int]) -> dict[int, int]:
    found: dict[int, int] = defaultdict(int)
    for k, size in sizes.items():
        found[tasks[k.cell]] += size
    return found


@given(SIZES, st.integers(1, 10**12), st.integers(1, 1024), st.integers(1, 64))
def test_every_cell_has_a_task(sizes: dict[BlockKey, int], read: int, target_mib: int, parallelism: int) -> None:
    tasks, count = plan(sizes, read, target_mib * MIB, parallelism)

    assert tasks.keys() == {k.cell for k in sizes}
    assert all(0 <= task < count for task in tasks.values())


def test_many_small_partitions_are_shared_by_all_cores() -> None:
    sizes = {key(bucket, 0): 10 * MIB for bucket in range(60)}

    tasks, count = plan(sizes, 300 * MIB, 512 * MIB, parallelism=2)

    assert count == 4
    assert set(loads(sizes, tasks).values()) == {150 * MIB}


def test_a_partition_is_divided_by_ranges_when_its_file_would_be_too_large() -> None:
    """Half of the bytes in memory are left in the file: 4 GiB make four files of 512 MiB."""
    sizes = {key(7, range_): 128 * MIB for range_ in range(32)}

    tasks, _ = plan(sizes, 2048 * MIB, 512 * MIB, parallelism=2)

    assert [tasks[Cell(7, r)] for r in range(32)] == sorted((tasks[Cell(7, r)] for r in range(32)), key=lambda t: t)
    assert sorted(loads(sizes, tasks).values()) == [1024 * MIB] * 4


def test_a_partition_is_divided_for_cores_only_if_its_files_stay_large() -> None:
    small = {key(0, range_): 10 * MIB for range_ in range(8)}
    large = {key(0, range_): 100 * MIB for range_ in range(8)}

    assert plan(small, 80 * MIB, 512 * MIB, parallelism=2)[1] == 1
    assert plan(large, 800 * MIB, 512 * MIB, parallelism=2)[1] == 2


@given(st.lists(st.tuples(st.text(max_size=3), st.integers()), max_size=30))
def test_rows_come_back_as_they_went(rows: list[tuple[str, int]]) -> None:
    ids = pa.array([i for i, _ in rows], pa.string()).dictionary_encode()
    table = pa.table({"n": pa.array([n % 2**60 for _, n in rows], pa.int64()), "batch_id": ids})

    assert decode(encode(table)).to_pylist() == table.to_pylist()


def test_rows_of_a_task_that_are_not_divided_are_one_block_with_its_size() -> None:
    facts = BlockFacts()
    tables = [pa.table({"n": [1]}), pa.table({"n": pa.array([], pa.int64())}), pa.table({"n": [2]})]

    (block,) = blocks_of(tables, None, 5, 3, facts)

    assert block == Block(BlockKey(Cell(0, 5), 3, 0), block.content)
    assert decode(block.content)["n"].to_pylist() == [1, 2]
    assert facts == BlockFacts({block.key: 16}, {})


def numbered(bucket: int, number: int = 0) -> BlockKey:
    return BlockKey(Cell(bucket, 0), 0, number)


@given(st.lists(st.binary(max_size=40), max_size=20), st.integers(0, 200))
def test_blocks_come_back_in_order(contents: list[bytes], in_memory: int) -> None:
    with Spool(in_memory) as spool:
        for number, content in reversed([*enumerate(contents)]):
            spool.add(numbered(number % 3, number), content)

        found = {k: spool.take(k) for k in spool.in_order()}

    assert list(found) == sorted(found)
    assert {k.number: content for k, content in found.items()} == dict(enumerate(contents))


def test_nobody_can_read_what_is_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file has no name, so the test looks at it through the process's open files."""
    monkeypatch.setenv("SPARK_LOCAL_DIRS", f"{tmp_path},/elsewhere")
    opened: list[Any] = []
    original = tempfile.TemporaryFile
    monkeypatch.setattr(
        spool_module.tempfile, "TemporaryFile", lambda **how: opened.append(original(**how)) or opened[0]
    )
    secret = b"the record of a person" * 100
    with Spool(in_memory=0) as spool:
        spool.add(numbered(1), secret)
        opened[0].flush()
        on_disk = Path(f"/proc/self/fd/{opened[0].fileno()}")

        assert os.readlink(on_disk).startswith(str(tmp_path))
        assert b"person" not in on_disk.read_bytes()
        assert list(tmp_path.iterdir()) == []
        assert spool.take(numbered(1)) == secret
    assert opened[0].closed
