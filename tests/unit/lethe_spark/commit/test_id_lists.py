"""Lists that a run reads: each keeps out its own request at most."""

from pathlib import Path

import pytest
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.restatement.group import parse_ids
from lethe_spark.commit.replacement_files import with_ids

from tests.support.builders import a_request


def by_list(path: Path, name: str = "listed", **changes: object) -> RestatementRequest:
    return a_request(name, batch_ids=(), batch_ids_uri=f"file://{path}", **changes)


def read(
    *requests: RestatementRequest, location: str = "file:///lake/t"
) -> tuple[dict[str, RestatementRequest], dict[str, RequestResult]]:
    found, aside = with_ids(requests, {}, location)
    assert [r.key for r in found] == [r.key for r in requests]
    return {r.name: r for r in found}, {r.name: r for r in aside.values()}


def test_requests_get_the_ids_of_their_lists_and_others_stay_as_they_are(tmp_path: Path) -> None:
    content = "b\na\nb\n航班\n".encode()
    (tmp_path / "ids").write_bytes(content)
    other = a_request("other")

    found, aside = read(by_list(tmp_path / "ids"), other)

    listed = found["ns/listed"]
    assert (listed.batch_ids, listed.batch_ids_sha256) == (("b", "a", "航班"), parse_ids(content, "").sha256)
    assert (found["ns/other"], aside) == (other, {})


def test_a_list_that_is_not_there_is_waited_for_and_one_that_is_none_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").write_bytes(b"\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "good").write_bytes(b"a")
    names = ("missing", "empty", "folder", "good")

    found, aside = read(*(by_list(tmp_path / name, name) for name in names))

    assert {n.removeprefix("ns/"): (r.reason, r.again) for n, r in aside.items()} == {
        "missing": ("ListNotFound", True),
        "empty": ("InvalidIdList", False),
        "folder": ("ListUnreadable", True),
    }
    assert aside["ns/missing"].message == (
        f"Restatement ns/missing: spec.batchIdsFrom.uri file://{tmp_path}/missing: the object does not exist. Create it."
    )
    assert found["ns/good"].batch_ids == ("a",)


def test_a_list_that_has_changed_since_it_was_first_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "ids").write_bytes(b"a")
    first = parse_ids(b"a", "").sha256

    same, _ = read(by_list(tmp_path / "ids", batch_ids_sha256=first))
    (tmp_path / "ids").write_bytes(b"a\nb")
    _, aside = read(by_list(tmp_path / "ids", batch_ids_sha256=first))

    assert same["ns/listed"].batch_ids == ("a",)
    result = aside["ns/listed"]
    assert (result.reason, result.again, result.batch_ids_sha256) == ("ListChanged", False, None)


@pytest.mark.parametrize("uri", ["file:///proc/self/environ", "file:/etc/passwd", "FILE:///etc/passwd", "/etc/passwd"])
def test_local_files_are_not_read_for_a_table_on_another_storage(uri: str) -> None:
    """Credentials lie among them, and unknown ids are told in a status."""
    _, aside = read(a_request("r", batch_ids=(), batch_ids_uri=uri), location="s3://lake/t")

    assert "local files are not supported" in aside["ns/r"].message


def test_what_no_file_io_can_open_is_refused() -> None:
    _, aside = read(a_request("r", batch_ids=(), batch_ids_uri="odd://x/y"), location="s3://lake/t")

    assert (aside["ns/r"].reason, aside["ns/r"].again) == ("InvalidIdList", False)
