"""A listing of the buffer is cut into batches; what is none is named with its reason."""

import json
import os
from pathlib import Path

import pytest
from lethe.buffer.layout import Directories, Files, Layout, folders_of, is_data
from lethe.contract.settings import BufferLayout
from lethe.ingest.shared_folders import open_buffer
from lethe.storage.local_store import LocalStore

from tests.support.buffers import Listing, listing_of
from tests.support.builders import NOW, ago, an_object, listed

ROOT = "s3://lake/buffer"
DIRECTORIES = Directories("batch_id")


def grouped(*keys: str, layout: Layout = DIRECTORIES, root: str = ROOT) -> Listing:
    return Listing.of(folders_of([listed(f"{root}/{k}") for k in keys], root, layout))


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


LONG = "x" * 300
NEEDS_FOLDERS = "is not a batch: with spec.buffer.layout Directory, each folder is a batch"


@pytest.mark.parametrize(
    ("layout", "keys", "invalid"),
    [
        (
            DIRECTORIES,
            ["batch_id=A/p", "other=B/p", "batch_id=/p", "batch_id=%FF/p", f"batch_id={LONG}/p", "loose.parquet"],
            {
                "other=B": "the folder 'other=B' is not named batch_id=<batch id>",
                "batch_id=": "the folder 'batch_id=' names a batch id of 0 characters, expected 1 to 256",
                "batch_id=%FF": "the folder 'batch_id=%FF' is not percent-encoded UTF-8",
                f"batch_id={LONG}": f"the folder 'batch_id={LONG[:71]}' names a batch id of 300 characters, "
                "expected 1 to 256",
                "loose.parquet": f"the file 'loose.parquet' {NEEDS_FOLDERS}",
            },
        ),
        (
            Files(),
            ["A.csv", "%FF.csv", f"{LONG}.csv", "batch_id=B/_SUCCESS", "batch_id=B/p.csv"],
            {
                "%FF.csv": "the file '%FF.csv' is not percent-encoded UTF-8",
                f"{LONG}.csv": f"the file {LONG[:80]!r} names a batch id of 300 characters, expected 1 to 256",
                "batch_id=B/": "the folder 'batch_id=B/' is not a batch: with spec.buffer.layout File, each file is a "
                "batch",
            },
        ),
    ],
    ids=["Directory", "File"],
)
def test_what_is_no_batch_is_named_with_the_reason_and_the_others_go_on(
    layout: Layout, keys: list[str], invalid: dict[str, str]
) -> None:
    found = grouped(*keys, layout=layout)

    assert [b.id for b in found.batches] == ["A"]
    assert found.invalid == invalid


@pytest.mark.parametrize(
    ("layout", "keys"),
    [
        (DIRECTORIES, ["_tmp/p", ".x/p", "batch_id=B/"]),
        (Files(), ["_a.csv", ".b.csv.crc", "_refused/c.csv/0123/c.csv", ".tmp/d.csv"]),
    ],
    ids=["Directory", "File"],
)
def test_hidden_folders_and_files_under_way_are_passed_over(layout: Layout, keys: list[str]) -> None:
    """On a file system a producer writes under such a name and renames."""
    assert grouped(*keys, layout=layout) == Listing((), {})


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


def test_a_folder_with_too_many_objects_is_no_batch_and_those_after_it_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe.buffer.layout.OBJECTS_AT_MOST", 3)
    sizes = {"A": 3, "B": 4, "D": 5, "E": 1}

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


@pytest.mark.parametrize(
    "names", [("a.parquet", "a.csv"), ("a.csv", "a.csv.gz"), ("a b.csv", "a%20b.csv"), ("a", "a.CSV")]
)
def test_two_files_may_be_of_one_id(names: tuple[str, str]) -> None:
    """Whoever folds the listing sets both aside: which of them is the batch is nobody's to guess."""
    one, other = grouped(*names, layout=Files()).batches

    assert one.id == other.id


@pytest.mark.parametrize(("layout", "key"), [(DIRECTORIES, "batch_id=A/p.parquet"), (Files(), "A.parquet")])
def test_a_hidden_folder_above_the_buffer_hides_nothing(layout: Layout, key: str) -> None:
    (batch,) = grouped(key, layout=layout, root="s3://lake/_private/.buffer").batches

    assert len(batch.data_objects) == 1


@pytest.mark.parametrize(
    ("key", "folder", "expected"),
    [
        ("s3://lake/b/a.parquet", "", True),
        ("s3://lake/_b/.c/a.parquet", "", True),
        ("s3://lake/b/_SUCCESS", "", False),
        ("s3://lake/b/.a.crc", "", False),
        ("s3://lake/b/a_b.c", "", True),
        ("s3://lake/b/a.parquet", "s3://lake/b", True),
        ("s3://lake/_b/a.parquet", "s3://lake/_b", True),
        ("s3://lake/b/_tmp/a.parquet", "s3://lake/b", False),
        ("s3://lake/b/x/.y/a.parquet", "s3://lake/b", False),
        ("s3://lake/b/x/y_z.w/a.parquet", "s3://lake/b", True),
        ("s3://lake/b/_SUCCESS", "s3://lake/b", False),
        ("s3://lake/b/day=1_$folder$", "s3://lake/b", False),
        ("s3://lake/b_$folder$", "", False),
        ("s3://lake/a.parquet", "s3://lake/a.parquet", True),  # the layout File
    ],
)
def test_names_that_begin_with_an_underscore_or_a_dot_are_no_data(key: str, folder: str, expected: bool) -> None:
    assert is_data(key, folder) is expected


@pytest.mark.parametrize("slash", ["", "/", "//"])
@pytest.mark.parametrize("scheme", ["file://", "file:", ""])
def test_a_local_listing_names_files_below_the_uri_as_it_was_written(tmp_path: Path, scheme: str, slash: str) -> None:
    for name in ("b/x.parquet", "b/sub é/y", "a#1", "_hidden/z", "c/_tmp/w"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "b" / "gone").symlink_to(tmp_path / "nothing")
    uri = f"{scheme}{tmp_path}"

    found = [o.key for o in LocalStore(uri).list(uri + slash, hidden=False)]

    assert found == [f"{uri}/{name}" for name in ("a#1", "b/x.parquet", "b/sub é/y", "c/_tmp/w")]
    assert f"{uri}/_hidden/z" in {o.key for o in LocalStore(uri).list(uri + slash)}
    assert list(LocalStore(uri).list(f"{uri}/nothing")) == []


@pytest.mark.parametrize("layout", [BufferLayout.DIRECTORY, BufferLayout.FILE])
def test_a_local_name_that_is_not_utf_8_hides_no_other_batch(tmp_path: Path, layout: BufferLayout) -> None:
    """A file system takes any bytes. No ledger and no status can store such a name."""
    names = {
        BufferLayout.DIRECTORY: [b"batch_id=A/p", b"batch_id=B/p\xff", b"batch_id=C\xff/p", b"loose\xff"],
        BufferLayout.FILE: [b"A.csv", b"B\xff.csv", b"C\xff/p"],
    }[layout]
    try:
        for name in names:
            file = tmp_path / os.fsdecode(name)
            file.parent.mkdir(exist_ok=True)
            file.touch()
    except OSError:
        pytest.skip("the file system accepts only UTF-8")

    found = listing_of(open_buffer(f"file://{tmp_path}", "batch_id", {}, layout))

    assert [(b.id, len(b.fingerprint)) for b in found.batches] == [("A", 64)]
    assert len(found.invalid) == len(names) - 1
    assert json.dumps(found.invalid, ensure_ascii=False).encode()
