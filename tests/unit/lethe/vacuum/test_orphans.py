"""Only what nobody can need goes: in doubt a file stays."""

from datetime import datetime, timedelta

import pytest
from lethe.buffer.layout import ListedObject
from lethe.vacuum.housekeeping import Folders, Orphans, OrphanScope, key_of, plan_orphans, shown

from tests.support.builders import NOW, RUN, ago, listed

TABLE = "s3://lake/wh/air/flights"
BUFFER = "s3://lake/buffer/flights"
FOLDERS = Folders(f"{TABLE}/data", f"{TABLE}/metadata")
LIMIT = timedelta(days=3)
OLD = ago(days=4)
OTHER_RUN = "f" * 32


def old(path: str, modified: datetime = OLD, size: int = 10) -> ListedObject:
    return listed(f"{TABLE}/{path}", size=size, modified=modified)


def orphans(
    *found: ListedObject, needed: tuple[str, ...] = (), limit: timedelta = LIMIT, buffer: str = BUFFER
) -> set[str]:
    """Their paths below the table."""
    keys = {key_of(uri) for uri in needed}
    return {
        f.removeprefix(f"{TABLE}/") for f in plan_orphans(found, keys, OrphanScope(FOLDERS, buffer), NOW, limit).files
    }


@pytest.mark.parametrize(
    "path",
    [
        "data/day=1/00000-1-a.parquet",
        f"data/{RUN}/day=1/00000-1-a.parquet",
        f"data/{RUN}/00000-1-deletes.puffin",
        "data/a.orc",
        "metadata/snap-1-1-a.avro",
        "metadata/a-m0.avro",
        "metadata/00007-a.metadata.json",
        "metadata/a.stats",
    ],
)
def test_old_unneeded_files_of_writers_are_orphans(path: str) -> None:
    assert orphans(old(path)) == {path}
    assert orphans(old(path), needed=(f"{TABLE}/{path}",)) == set()
    assert orphans(old(path, ago(days=2))) == set()


@pytest.mark.parametrize(
    "path",
    [
        "_tombstones/00000001-a-root.json",
        "_runs/a.json",
        "data/_tombstones/a.avro",
        "data/_refused/a.parquet",
        "data/.hidden/a.parquet",
        "metadata/version-hint.text",
        "metadata/v7.metadata.json",
        "metadata/v7.gz.metadata.json",
        "metadata/folder/a.avro",
        "metadata/notes.txt",
        "data/README",
        "other/a.parquet",
        "a.parquet",
        "checkpoints/a.avro",
    ],
)
def test_what_no_writer_of_the_table_puts_there_is_not_judged(path: str) -> None:
    assert orphans(old(path)) == set()


def test_a_limit_of_less_than_a_day_counts_as_a_day() -> None:
    """A commit under way has written files that nobody names yet."""
    assert orphans(old("data/a.parquet", ago(hours=23)), limit=timedelta(0)) == set()
    assert orphans(old("data/a.parquet", ago(hours=25)), limit=timedelta(0)) == {"data/a.parquet"}


def test_nothing_of_a_run_goes_while_it_still_writes() -> None:
    """What it wrote first may be older than the limit."""
    first, latest = old(f"data/{OTHER_RUN}/day=1/a.parquet"), old(f"data/{OTHER_RUN}/day=2/b.parquet", ago(hours=1))
    of_another = old(f"data/{RUN}/day=1/a.parquet")

    assert orphans(first, latest, of_another) == {f"data/{RUN}/day=1/a.parquet"}


def test_the_files_of_the_own_run_stay() -> None:
    mine = old(f"data/{RUN}/day=1/a.parquet")

    assert plan_orphans([mine], (), OrphanScope(FOLDERS, BUFFER, own_run=RUN), NOW, LIMIT) == Orphans()


def test_a_young_file_in_a_partition_keeps_nothing_else_there() -> None:
    """Only a run's folder tells that one writer is at work."""
    assert orphans(old("data/day=1/a.parquet"), old("data/day=1/b.parquet", NOW)) == {"data/day=1/a.parquet"}


def test_batches_and_replacements_are_never_orphans() -> None:
    batch = [
        old("data/restated/A2/_SUCCESS"),
        old("data/restated/A2/part-0.parquet"),
        old("data/restated/A2/x/1.parquet"),
    ]
    in_buffer = old("data/buffer/B.parquet")

    assert orphans(*batch, old("data/restated/b.parquet")) == {"data/restated/b.parquet"}
    assert orphans(in_buffer, buffer=f"{TABLE}/data/buffer/") == set()


def test_a_table_of_a_namespace_of_the_same_name_is_not_swept_with_this_one() -> None:
    """Catalogs put the table `air.flights.data` right into the data folder of `air.flights`."""
    theirs = [old("data/metadata/00001-a.metadata.json"), old("data/metadata/snap-1.avro"), old("data/data/a.parquet")]
    nested = [old("data/day=1/b.parquet"), old("data/x/metadata/v1.metadata.json"), old("data/x/data/a.parquet")]

    assert orphans(*theirs) == set()
    assert orphans(*nested) == {"data/day=1/b.parquet"}


@pytest.mark.parametrize("uri", [f"s3a{TABLE[2:]}/data/a.parquet", "s3://lake//wh/air/flights/data/a.parquet"])
def test_a_file_that_is_named_in_another_way_is_the_same_file(uri: str) -> None:
    assert orphans(old("data/a.parquet"), needed=(uri,)) == set()


def test_local_files_are_known_however_their_scheme_is_written() -> None:
    folders = Folders.of("file:/wh/air/flights", None, None)
    found = listed("file:/wh/air/flights/data/a b.parquet", modified=OLD)

    assert (
        plan_orphans([found], {key_of("/wh/air/flights/data/a b.parquet")}, OrphanScope(folders, BUFFER), NOW, LIMIT)
        == Orphans()
    )
    assert plan_orphans([found], (), OrphanScope(folders, BUFFER), NOW, LIMIT) == Orphans((found.key,), 10)


@pytest.mark.parametrize(
    ("data_path", "wanted"),
    [
        (None, f"{TABLE}/data"),
        (f"{TABLE}/elsewhere/", f"{TABLE}/elsewhere"),
        ("s3://lake/wh/air/flights_2/data", None),
        ("s3://other/data", None),
        (TABLE, None),
    ],
)
def test_a_folder_that_is_not_below_the_table_is_left_alone(data_path: str | None, wanted: str | None) -> None:
    """Files of other tables may lie there as well."""
    assert Folders.of(f"{TABLE}/", data_path, None) == Folders(wanted, f"{TABLE}/metadata")


def test_the_listing_for_people_is_short_and_without_the_values_of_partitions() -> None:
    found = plan_orphans(
        [old(f"data/name=Jane Doe/{n:03}.parquet") for n in range(30)], (), OrphanScope(FOLDERS, BUFFER), NOW, LIMIT
    )

    assert shown(found, TABLE) == tuple(f"data/name=…/{n:03}.parquet" for n in range(20))
    assert (len(found.files), found.bytes) == (30, 300)
