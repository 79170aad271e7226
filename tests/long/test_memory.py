"""The memory and processor time that listings, selections and Restatements take do not grow with their number."""

import json
import time
import tracemalloc
from collections.abc import Iterator, Mapping, Sequence
from datetime import timedelta

import pytest
from lethe.base.errors import Verdict
from lethe.base.objects import ListedObject
from lethe.buffer import selection
from lethe.buffer.digest import digest
from lethe.buffer.layout import Directories, Files, Layout, folders_of
from lethe.ledger.ledger import BatchEntry
from lethe_operator.dataset.decide import decide
from lethe_operator.restatement import status
from lethe_operator.restatement.observe import RestatementCache
from lethe_operator.restatement.outcome import Assessment, RestatementPhase

from tests.support.builders import NOW, a_batch, ago, listed
from tests.support.resources import (
    SETTINGS,
    a_buffer,
    a_buffered,
    a_dataset,
    a_restatement,
    a_restatement_body,
    a_world,
)
from tests.support.statuses import document
from tests.unit.lethe.buffer.test_selection import buffered, gone_through
from tests.unit.lethe_operator.dataset.test_trigger import EAGER
from tests.unit.lethe_operator.restatement.test_restatements import ENDED, names, version

pytestmark = pytest.mark.long

ROOT = "s3://lake/buffer"
MIB = 1024 * 1024


def a_listing(objects: int) -> Iterator[ListedObject]:
    """As a store lists them, four to a batch and none of them kept; the ages go up and down."""
    for n in range(objects // 4):
        folder, at = f"{ROOT}/batch_id=2026-03-01.{n:07}", ago(seconds=n * 7919 % 100_003)
        yield listed(f"{folder}/_SUCCESS", 0, f"m{n}", at)
        for part in range(3):
            key = f"{folder}/part-0000{part}-of-00003.snappy.parquet"
            yield listed(key, 1000, f"an-etag-has-thirty-two-characters{part}{n:07}", at)


def a_listing_of_files(count: int) -> Iterator[ListedObject]:
    """Each of them a batch."""
    for n in range(count):
        key = f"{ROOT}/2026-03-01.{n:07}.snappy.parquet"
        yield listed(key, 1000, f"an-etag-has-thirty-two-characters0{n:07}", ago(seconds=n * 7919 % 100_003))


@pytest.mark.parametrize(
    ("listing", "layout", "counts", "max_bytes"),
    [
        (a_listing(200_000), Directories("batch_id"), (45_000, 5_000), 8 * MIB),
        (a_listing_of_files(200_000), Files(), (180_000, 20_000), 16 * MIB),  # four times the batches, by their hashes
    ],
    ids=["Directory", "File"],
)
def test_the_memory_that_a_listing_takes_does_not_grow_with_the_buffer(
    listing: Iterator[ListedObject], layout: Layout, counts: tuple[int, int], max_bytes: int
) -> None:
    """200,000 objects, a tenth of them promoted: kept whole they would be 80 MiB."""

    def look_up(wanted: Sequence[str]) -> Mapping[str, BatchEntry]:
        return {i: a_batch(i, time=ago(days=9)) for i in wanted if i.removesuffix(".snappy").endswith("7")}

    tracemalloc.start()
    try:
        made = digest(folders_of(listing, ROOT, layout), look_up, 2000, 3600, NOW)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (made.objects, made.batches, made.promoted, len(made.oldest)) == (200_000, *counts, 2000)
    assert peak < max_bytes


def test_a_folder_of_a_million_files_takes_no_more_memory_than_the_largest_batch() -> None:
    """It is named as no batch. The largest one takes 65 MiB."""

    def a_folder() -> Iterator[ListedObject]:
        for n in range(1_000_000):
            yield listed(
                f"{ROOT}/batch_id=huge/part-{n:07}.parquet", 1000, f"an-etag-has-thirty-two-chars{n:07}", ago()
            )

    tracemalloc.start()
    try:
        made = digest(folders_of(a_folder(), ROOT, Directories("batch_id")), lambda _: {}, 2000, 3600, NOW)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()

    assert (made.batches, made.invalid) == (0, 1)
    assert peak < 128 * MIB


def test_a_buffer_four_times_as_large_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(selection, "BUFFERED_AT_MOST", 1000)

    def peak(count: int) -> int:
        tracemalloc.start()
        youngest_first = range(count - 1, -1, -1)
        gone_through((buffered(f"b{n}", oldest_time=NOW + timedelta(seconds=n)) for n in youngest_first), "b1")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        return peak

    assert peak(20_000) - peak(5_000) < MIB / 4


def test_those_that_are_done_take_little_memory_and_no_time() -> None:
    """Whole, each takes 8 kB, and parsing it at each look 0.1 ms: 20,000 would take 160 MB and two seconds."""
    count, known = 4000, RestatementCache()
    tracemalloc.start()
    try:
        for n in range(count):
            body = a_restatement_body(f"r{n:05}", batchIds=[f"batch-{n}"], status=ENDED, meta=version(n))
            known.put(body)
        known.put(a_restatement_body("open", meta=version(count)))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    began = time.process_time()
    for _ in range(10):
        found = known.of("ns", "flights", NOW)
    took = time.process_time() - began

    assert names(found) == ["open"]
    assert held < 2500 * count
    assert took < 10 * count * 0.00001
    assert len(known.done("ns", "flights")) == count


def test_those_that_wait_say_the_same_in_the_same_words_and_keep_them_once() -> None:
    """As the API server sends them, each has words of its own, and takes more than 6 kB."""
    count, known = 1000, RestatementCache()
    standing = Assessment(RestatementPhase.QUEUED, "Unknown", Verdict("Queued", "It waits."))
    waits = document(status.status(a_restatement(), standing, NOW))
    sent = [
        json.dumps(a_restatement_body(f"r{n:05}", batchIds=[f"batch-{n}"], status=waits, meta=version(n)))
        for n in range(count)
    ]
    tracemalloc.start()
    try:
        for text in sent:
            known.put(json.loads(text))
        held, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()

    assert held < 5300 * count


def test_a_decision_on_a_buffer_of_200_000_objects_takes_less_than_a_second() -> None:
    """Of processor time: listing it is another matter, and another thread's."""
    buffer = a_buffer(*(a_buffered(f"b{n:06}", age_seconds=n % 997) for n in range(100_000)))
    world = a_world(buffer=buffer)
    began = time.process_time()

    actions = decide(a_dataset(**EAGER), world, NOW, SETTINGS)

    assert time.process_time() - began < 1
    assert len(actions.launches[0].run.consolidation.batch_ids) == 50_000  # type: ignore[union-attr]
    assert document(actions.dataset_status)["buffer"]["batches"] == 100_000
