"""What an upload writes where: pure functions of names, sizes and ledger entries."""

import pytest
from lethe.base.errors import InputError
from lethe.base.objects import BufferedObject
from lethe.buffer.upload import BufferUpload, Known, LocalFile, judge_entry, plan_upload
from lethe.contract.settings import BufferLayout
from lethe.ledger.ledger import BatchState

from tests.support.builders import a_batch

ROOT = "s3://lake/buffer"


def an_upload(*names: str, layout: BufferLayout = BufferLayout.DIRECTORY, batch: str = "a/b") -> BufferUpload:
    return plan_upload(ROOT, layout, "batch_id", batch, [LocalFile(n, 5) for n in names])


def test_each_file_keeps_its_path_below_the_folder_of_the_batch_and_the_marker_completes_it() -> None:
    upload = an_upload("p0.parquet", "day=1/p1.parquet")

    assert list(upload.files) == [
        f"{ROOT}/batch_id=a%2Fb/p0.parquet",
        f"{ROOT}/batch_id=a%2Fb/day=1/p1.parquet",
    ]
    assert (upload.marker, upload.bytes) == (f"{ROOT}/batch_id=a%2Fb/_SUCCESS", 10)


@pytest.mark.parametrize(
    ("name", "batch", "expected"),
    [("x.csv", "b", "b.csv"), ("x.CSV.gz", "b", "b.csv.gz"), ("x", "b", "b"), ("x.json", "_b", "%5Fb.json")],
)
def test_with_the_layout_file_the_only_file_is_the_batch(name: str, batch: str, expected: str) -> None:
    upload = an_upload(name, layout=BufferLayout.FILE, batch=batch)

    assert (list(upload.files), upload.marker) == ([f"{ROOT}/{expected}"], "")


def test_a_folder_that_is_no_batch_is_refused() -> None:
    with pytest.raises(InputError, match=r"NoDataFiles: .* begin with _ or \."):
        an_upload()
    with pytest.raises(InputError, match=r"SeveralFiles: the folder has 2 data files"):
        an_upload("a.csv", "b.csv", layout=BufferLayout.FILE)


LONGEST = "\U0001f600" * 256  # 1,024 bytes
KEY_BYTES = "the key of an object has {} bytes, expected at most 1024"
NAME_BYTES = "the name of a file or folder has {} bytes, expected at most 255"


@pytest.mark.parametrize("layout", BufferLayout)
@pytest.mark.parametrize(
    ("root", "batch", "message"),
    [
        ("s3://lake/buffer", LONGEST, KEY_BYTES.format("3[01][0-9]{2}")),
        ("abfss://lake@x/buffer", "é" * 170, KEY_BYTES.format("10[0-9]{2}")),
        ("file:///lake/buffer", "x" * 256, NAME_BYTES.format("26[0-9]")),
        ("/lake/buffer", "é" * 50, NAME_BYTES.format("30[0-9]")),
    ],
)
def test_a_name_that_the_store_cannot_have_is_refused_before_anything_is_written(
    layout: BufferLayout, root: str, batch: str, message: str
) -> None:
    with pytest.raises(InputError, match=f"NameTooLong: .*{message}.*Use a shorter batch id"):
        plan_upload(root, layout, "batch_id", batch, [LocalFile("p.csv", 5)])


def test_more_files_than_a_batch_may_have_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lethe.buffer.upload.OBJECTS_AT_MOST", 3)

    assert an_upload("a.csv", "b.csv").marker
    with pytest.raises(
        InputError, match="TooManyFiles: the folder has 3 data files, and a batch has at most 3 objects"
    ):
        an_upload("a.csv", "b.csv", "c.csv")


def test_the_longest_names_are_accepted() -> None:
    """The key of the longest object has 1,024 bytes, and the longest name of a folder 255."""
    key = 1024 - len("buffer/batch_id=/_SUCCESS")
    assert plan_upload(ROOT, BufferLayout.DIRECTORY, "batch_id", "x" * 256, [LocalFile("p", 5)]).marker
    assert plan_upload(ROOT, BufferLayout.DIRECTORY, "batch_id", "é" * (key // 6), [LocalFile("p", 5)]).marker
    assert plan_upload("/lake", BufferLayout.DIRECTORY, "batch_id", "x" * (255 - len("batch_id=")), [LocalFile("p", 5)])


def test_a_used_id_is_refused_and_the_same_batch_again_is_not() -> None:
    upload = an_upload("p.parquet")
    same = (BufferedObject(f"{upload.folder}/p.parquet", 5, "e"), BufferedObject(upload.marker, 0, "e"))
    other = (BufferedObject(f"{upload.folder}/p.parquet", 6, "e"),)

    assert judge_entry(upload, None) is Known.NEW
    assert judge_entry(upload, a_batch("a/b", BatchState.REFUSED, objects=other)) is Known.NEW
    assert judge_entry(upload, a_batch("a/b", objects=same)) is Known.SAME
    with pytest.raises(InputError, match=r"BatchIdUsed: the batch id a/b is used: the batch is promoted since"):
        judge_entry(upload, a_batch("a/b", objects=other))
    with pytest.raises(InputError, match="the batch is reverted"):
        judge_entry(upload, a_batch("a/b", BatchState.REVERTED, objects=same))


@pytest.mark.parametrize(
    "names",
    [("day=2/p.parquet",), ("day=1/p.parquet", "day=2/p.parquet"), ("day=1/day=2/p.parquet",), ("p.parquet",)],
)
def test_files_of_one_name_in_other_folders_are_other_files(names: tuple[str, ...]) -> None:
    """Folders name values, and the files of partitions often have the same names and sizes."""
    before, upload = an_upload("day=1/p.parquet"), an_upload(*names)
    promoted = a_batch("a/b", objects=tuple(BufferedObject(uri, 5, "e") for uri in before.files))

    with pytest.raises(InputError, match="BatchIdUsed"):
        judge_entry(upload, promoted)


def test_files_that_were_moved_with_the_buffer_are_the_same() -> None:
    upload = an_upload("day=1/p.parquet")
    moved = a_batch("a/b", objects=(BufferedObject("s3://other/batch_id=a%2Fb/day=1/p.parquet", 5, "e"),))
    elsewhere = a_batch("a/b", objects=(BufferedObject("s3://other/new/day=1/p.parquet", 5, "e"),))

    assert judge_entry(upload, moved) is Known.SAME
    assert judge_entry(upload, elsewhere) is Known.SAME
