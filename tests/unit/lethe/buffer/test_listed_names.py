"""Which objects of a folder are data, and what a local listing calls them."""

from pathlib import Path

import pytest
from lethe.buffer.layout import is_data
from lethe.storage.local_store import LocalStore


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
