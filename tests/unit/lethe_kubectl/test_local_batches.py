"""The batches of folders and manifests, and what is reported of many."""

import threading
from pathlib import Path

import pytest
from lethe.base.errors import InputError, TransientError
from lethe.buffer.upload import LocalFile, plan_upload
from lethe.client import GatewayClient
from lethe.contract.settings import BufferLayout
from lethe_kubectl.local_batches import (
    LocalBatch,
    batches_in,
    batches_of_folders,
    batches_of_manifest,
    id_of,
    require_distinct,
)
from lethe_kubectl.many import AWAY_AT_MOST, Outcome, put_many
from lethe_kubectl.put import put_through

BASE = Path("/data")


def test_a_template_puts_the_name_of_the_folder_into_the_id() -> None:
    assert id_of("monday", "batch_id", "load-{name}-1") == "load-monday-1"
    assert id_of("batch_id=a%2Fb", "batch_id", "load-{name}") == "load-a/b"
    assert id_of("other=a", "", "") == "a"


@pytest.mark.parametrize(("folder", "template"), [("\udcff", ""), ("batch_id=\udcff", ""), ("\udcff", "load-{name}")])
def test_a_folder_whose_name_is_not_utf_8_needs_another_id(folder: str, template: str) -> None:
    with pytest.raises(InputError, match=r"InvalidBatchId: .*UTF-8"):
        id_of(folder, "batch_id", template)


def test_a_batch_with_a_name_that_is_not_utf_8_does_not_stop_the_others() -> None:
    def put(batch: LocalBatch) -> Outcome:
        name = "\udcff.csv" if batch.batch_id == "a" else "x.csv"
        upload = plan_upload("s3://b", BufferLayout.DIRECTORY, "batch_id", batch.batch_id, [LocalFile(name, 1)])
        return Outcome(upload.batch_id, upload.folder, 1, upload.bytes, None, "put")

    many = put_many([LocalBatch("a"), LocalBatch("b")], put, 1)

    assert ([o.batch_id for o in many.outcomes], many.failures["a"].reason) == (["b"], "UnusableName")
    assert str(many.failures["a"]).isprintable()


def test_each_folder_of_a_root_is_a_batch_and_what_is_hidden_is_none(tmp_path: Path) -> None:
    for name in ("b", "batch_id=a%2F1", "_done", ".git"):
        (tmp_path / name).mkdir()
    (tmp_path / "c.csv.gz").write_text("v\n1\n")
    (tmp_path / "_SUCCESS").touch()

    folders, loose = batches_in(tmp_path, BufferLayout.DIRECTORY, "batch_id", "")
    with_files, _ = batches_in(tmp_path, BufferLayout.FILE, "batch_id", "x-{name}")

    assert (folders, loose) == ([LocalBatch("b", tmp_path / "b"), LocalBatch("a/1", tmp_path / "batch_id=a%2F1")], 1)
    assert with_files[-1] == LocalBatch("x-c", paths=(tmp_path / "c.csv.gz",))


CSV = "batch,folder,file\na,x,\nb,,one.csv\nb,,/abs/two.csv\n"
JSON = '{"batch": "a", "folder": "x"}\n\n{"batch": "b", "files": ["one.csv", "/abs/two.csv"]}\n'


def test_a_line_of_json_may_hold_other_line_separators() -> None:
    (batch,) = batches_of_manifest('{"batch": "a\u2028b", "folder": "x"}\r\n', BASE)

    assert batch == LocalBatch("a\u2028b", BASE / "x")


@pytest.mark.parametrize("text", [CSV, JSON], ids=["csv", "json"])
def test_a_manifest_names_folders_and_files(text: str) -> None:
    assert batches_of_manifest(text, BASE) == [
        LocalBatch("a", BASE / "x"),
        LocalBatch("b", paths=(BASE / "one.csv", Path("/abs/two.csv"))),
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("id,folder\na,x\n", "must name columns"),
        ("batch,folder\n,x\n", "line 2 of the manifest has no batch"),
        ("batch,folder\na,\n", "line 2 of the manifest: name either a folder or files of the batch 'a'"),
        ("batch,folder\na,x\na,y\n", "line 3 of the manifest: the batch 'a' has a folder and another line"),
        ("batch,folder\n", "the manifest has no batch"),
        ('{"batch": "a", "folder": "x"}\nnonsense\n', "line 2 of the manifest is not a JSON object"),
        ('{"batch": "a", "files": "x"}\n', "name either a folder or files"),
        ('{"batch": 7, "folder": "x"}\n', "line 1 of the manifest has no batch"),
    ],
)
def test_a_manifest_that_cannot_be_meant_is_refused_with_its_line(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        batches_of_manifest(text, BASE)


def test_files_of_one_name_are_no_batch(tmp_path: Path) -> None:
    paths = (tmp_path / "a/x.csv", tmp_path / "b/x.csv")
    with pytest.raises(InputError, match="SameName"):
        LocalBatch("a", paths=paths).files()
    with pytest.raises(InputError, match=r"NoFile: .*a/x.csv does not exist"):
        LocalBatch("a", paths=paths[:1]).files()
    with pytest.raises(InputError, match=r"NoFile: .*/a is not a folder"):
        LocalBatch("a", tmp_path / "a").files()


def test_two_batches_of_one_id_are_refused_before_anything_is_put() -> None:
    with pytest.raises(InputError, match="DuplicateBatch: two folders have the batch id 'x'"):
        require_distinct(batches_of_folders([Path("/a/x"), Path("/b/x")], "batch_id", ""))


def test_the_gateway_takes_folders_only(tmp_path: Path) -> None:
    with (
        GatewayClient("http://127.0.0.1:1", "token") as client,
        pytest.raises(InputError, match="NeedsFolder"),
    ):
        put_through(client, "flights", "", LocalBatch("a", paths=(tmp_path / "x.csv",)))


def outcome(batch: LocalBatch) -> Outcome:
    return Outcome(batch.batch_id, "", 1, 10, 2, "put")


BATCHES = [LocalBatch(f"b{n:02}") for n in range(50)]


def test_a_failure_does_not_stop_the_others() -> None:
    def put(batch: LocalBatch) -> Outcome:
        match batch.batch_id:
            case "b07":
                raise InputError("SchemaMismatch", "no")
            case "b08":
                raise PermissionError(13, "Permission denied", "/data/x")
        return outcome(batch)

    many = put_many(BATCHES, put, 4)

    assert {i: str(e) for i, e in many.failures.items()} == {
        "b07": "SchemaMismatch: no",
        "b08": "UnreadableFile: /data/x: Permission denied.",
    }
    assert many.summary() == "48 batches put, 0 unchanged, 2 failed: 48 files, 480 bytes, 96 rows"


def test_a_store_that_is_away_is_not_asked_for_every_batch() -> None:
    def put(batch: LocalBatch) -> Outcome:
        raise TransientError("StorageUnavailable", batch.batch_id)

    many = put_many(BATCHES, put, 1)

    assert (len(many.failures), many.untried) == (AWAY_AT_MOST, 50 - AWAY_AT_MOST)


def test_as_many_batches_are_put_at_once_as_wanted() -> None:
    """The barrier is passed only by four threads together."""
    barrier = threading.Barrier(4)

    def put(batch: LocalBatch) -> Outcome:
        barrier.wait(timeout=60)
        return outcome(batch)

    assert len(put_many(BATCHES[:8], put, 4).outcomes) == 8
