"""A listing of the buffer is cut into batches; what is none is named with its reason."""

import pytest
from lethe.buffer.layout import Directories, Files, Layout, fingerprint, folders_of, layout_of
from lethe.contract.settings import BufferLayout

from tests.support.buffers import Listing
from tests.support.builders import NOW, ago, an_object, listed

ROOT = "s3://lake/buffer"
DIRECTORIES = Directories("batch_id")


def grouped(*keys: str) -> Listing:
    return Listing.of(folders_of([listed(f"{ROOT}/{k}") for k in keys], ROOT, DIRECTORIES))


def test_a_folder_is_a_batch_with_its_objects_in_order() -> None:
    objects = [
        listed(f"{ROOT}/batch_id=A/p2.parquet", 20, "e2", ago(hours=1)),
        listed(f"{ROOT}/batch_id=A/p1.parquet", 10, "e1", ago(hours=2)),
        listed(f"{ROOT}/batch_id=A/_SUCCESS", 0, "m", NOW),
    ]

    (batch,) = Listing.of(folders_of(objects, ROOT + "/", DIRECTORIES)).batches

    assert (batch.id, batch.folder, batch.complete) == ("A", f"{ROOT}/batch_id=A", True)
    assert (batch.bytes, batch.oldest_time) == (30, ago(hours=2))
    assert [o.key.rpartition("/")[2] for o in batch.objects] == ["_SUCCESS", "p1.parquet", "p2.parquet"]
    assert [(o.size, o.etag) for o in batch.data_objects] == [(10, "e1"), (20, "e2")]


@pytest.mark.parametrize("keys", [["p.parquet"], ["p.parquet", "sub/_SUCCESS"], ["p.parquet", "_SUCCESS.tmp"]])
def test_a_folder_without_its_own_success_marker_waits(keys: list[str]) -> None:
    (batch,) = grouped(*(f"batch_id=A/{k}" for k in keys)).batches

    assert not batch.complete


def test_folders_that_are_no_batch_are_named_with_the_reason_and_the_others_go_on() -> None:
    too_long = "batch_id=" + "x" * 300

    found = grouped("batch_id=A/_SUCCESS", "other=B/p", "batch_id=/p", "batch_id=%FF/p", f"{too_long}/p")

    assert [b.id for b in found.batches] == ["A"]
    assert found.invalid == {
        "other=B": "the folder 'other=B' is not named batch_id=<batch id>",
        "batch_id=": "the folder 'batch_id=' names a batch id of 0 characters, expected 1 to 256",
        "batch_id=%FF": "the folder 'batch_id=%FF' is not percent-encoded UTF-8",
        too_long: f"the folder {too_long[:80]!r} names a batch id of 300 characters, expected 1 to 256",
    }


def test_hidden_folders_are_passed_over() -> None:
    assert grouped("_tmp/p", ".x/p", "batch_id=B/") == Listing((), {})


def test_loose_objects_are_named_since_a_folder_that_holds_them_may_be_no_buffer() -> None:
    found = grouped("loose.parquet", "batch_id=A")

    assert found.batches == ()
    assert sorted(found.invalid) == ["batch_id=A", "loose.parquet"]
    assert "is not a batch: with spec.buffer.layout Directory, each folder is a batch" in found.invalid["loose.parquet"]


def test_a_writers_unfinished_files_are_no_data() -> None:
    """Spark and others write below hidden folders, and leave markers and checksums: none of it is a row."""
    (batch,) = grouped(
        "batch_id=A/_SUCCESS",
        "batch_id=A/p.parquet",
        "batch_id=A/.p.parquet.crc",
        "batch_id=A/_temporary/0/p-1.parquet",
        "batch_id=A/day=1/p-2.parquet",
    ).batches

    assert [o.key.removeprefix(batch.folder) for o in batch.data_objects] == ["/day=1/p-2.parquet", "/p.parquet"]
    assert batch.bytes == 20


def files(*keys: str) -> Listing:
    return Listing.of(folders_of([listed(f"{ROOT}/{k}") for k in keys], ROOT, Files()))


@pytest.mark.parametrize("sizes", [{"A": 3, "B": 4, "D": 5, "E": 1}])
def test_a_folder_with_too_many_objects_is_no_batch_and_those_after_it_are(
    sizes: dict[str, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lethe.buffer.layout.OBJECTS_AT_MOST", 3)

    found = grouped(*(f"batch_id={i}/p{n}.csv" for i, count in sizes.items() for n in range(count)))

    assert [b.id for b in found.batches] == ["A", "E"]
    says = "has more than 3 objects; divide it into several batches"
    assert found.invalid == {f"batch_id={i}": f"the folder 'batch_id={i}' {says}" for i in "BD"}


def test_a_table_is_found_beyond_the_objects_of_a_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe.buffer.layout.OBJECTS_AT_MOST", 3)
    files = [f"a{n}.csv" for n in range(9)]

    found = grouped(*(f"batch_id=A/{f}" for f in (*files, "metadata/v1.metadata.json")))

    assert "is part of an Iceberg table" in found.invalid["batch_id=A"]


def test_with_the_layout_file_each_object_is_a_whole_batch() -> None:
    found = listed(f"{ROOT}/2013-01-01.UA.parquet", 20, "e2", ago(hours=1))

    (batch,) = Listing.of(folders_of([found], ROOT + "/", Files())).batches

    assert (batch.id, batch.folder, batch.complete) == ("2013-01-01.UA", found.key, True)
    assert (batch.bytes, batch.oldest_time) == (20, ago(hours=1))
    assert batch.objects == batch.data_objects == (an_object(found.key, 20, "e2"),)


def test_files_that_are_no_batch_are_named_with_the_reason_and_the_others_go_on() -> None:
    too_long = "x" * 257

    found = files("A.csv", "%FF.csv", f"{too_long}.csv", "batch_id=B/_SUCCESS", "batch_id=B/p.csv")

    assert [b.id for b in found.batches] == ["A"]
    assert found.invalid == {
        "%FF.csv": "the file '%FF.csv' is not percent-encoded UTF-8",
        f"{too_long}.csv": f"the file {too_long[:80]!r} names a batch id of 257 characters, expected 1 to 256",
        "batch_id=B/": "the folder 'batch_id=B/' is not a batch: with spec.buffer.layout File, each file is a batch",
    }


@pytest.mark.parametrize(
    "names", [("a.parquet", "a.csv"), ("a.csv", "a.csv.gz"), ("a b.csv", "a%20b.csv"), ("a", "a.CSV")]
)
def test_two_files_may_be_of_one_id(names: tuple[str, str]) -> None:
    """Whoever folds the listing sets both aside: which of them is the batch is nobody's to guess."""
    one, other = files(*names).batches

    assert one.id == other.id


def test_files_under_way_and_hidden_folders_are_passed_over() -> None:
    """On a file system a producer writes under such a name and renames."""
    assert files("_a.csv", ".b.csv.crc", "_refused/c.csv/0123/c.csv", ".tmp/d.csv") == Listing((), {})


@pytest.mark.parametrize("layout", [DIRECTORIES, Files()], ids=["Directory", "File"])
def test_a_hidden_folder_above_the_buffer_hides_nothing(layout: Layout) -> None:
    root = "s3://lake/_private/.buffer"
    name = "A.parquet" if isinstance(layout, Files) else "batch_id=A/p.parquet"

    (batch,) = Listing.of(folders_of([listed(f"{root}/{name}")], root, layout)).batches

    assert len(batch.data_objects) == 1


def test_a_fingerprint_changes_with_any_object_and_not_with_their_order() -> None:
    """A refused batch is looked at again exactly when its producer changed it."""
    one, two = an_object("k1"), an_object("k2")

    assert fingerprint([one, two]) == fingerprint([two, one])
    others = ([one], [one, an_object("k3")], [one, an_object("k2", size=11)], [one, an_object("k2", etag="f")])
    assert len({fingerprint(o) for o in ([one, two], *others)}) == 5


def test_each_layout_says_what_a_batch_is() -> None:
    assert (layout_of(BufferLayout.FILE, "b"), layout_of(BufferLayout.DIRECTORY, "b")) == (Files(), Directories("b"))
