"""Committing by creating the next version, reading by listing: on a local file system, with real processes that race."""

import json
import multiprocessing
import os
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import ConflictError, TableError, TransientError, UnknownCommitState
from lethe.files.hadoop_version import file_of, kept_versions, newest, outdated, version_of
from lethe.hadoop import MetadataFolder, MetadataVersion
from lethe.storage.local_store import LocalStore
from lethe.storage.object_store import FolderListing, open_folder
from lethe.uri import local_path

UUID = "9c12d441-03fe-4693-9a96-a0705ddf69c1"
WRITERS, EACH = 3, 6


def document(*entries: str, keep: int | None = None, uuid: str = UUID) -> str:
    """As much of a table's metadata as the protocol looks at, and a list that stands for its snapshots."""
    properties = (
        {}
        if keep is None
        else {"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": str(keep)}
    )
    return json.dumps({"table-uuid": uuid, "location": "file:///lake/t", "properties": properties, "entries": entries})


def entries(version: MetadataVersion | None) -> list[str]:
    assert version is not None
    return list(version.document["entries"])


class Faulty(FolderListing):
    """A local folder whose creations fail, or are interrupted, as a test wants."""

    fault: Callable[[], Any] | None = None
    when = "after"

    def create(self, name: str, content: bytes) -> bool:
        fault, self.fault = self.fault, None
        if fault is not None and self.when == "before":
            fault()
        made = super().create(name, content)
        if fault is not None and self.when == "after":
            fault()
        return made


@pytest.fixture
def folder(tmp_path: Path) -> Faulty:
    return Faulty(LocalStore(), f"file://{tmp_path}/t/metadata")


@pytest.fixture
def table(folder: Faulty) -> MetadataFolder:
    return MetadataFolder(folder)


def names(folder: FolderListing) -> set[str]:
    return set(os.listdir(local_path(folder.uri)))


def commit(table: MetadataFolder, *added: str, keep: int | None = None) -> MetadataVersion:
    base = table.current()
    return table.commit(base, document(*(entries(base) if base else []), *added, keep=keep))


def break_down() -> None:
    raise OSError("the connection was lost")


# --- reading ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("hint", [None, b"1", b"99", b"", b"garbage"])
def test_a_hint_that_is_missing_stale_or_wrong_changes_nothing(
    table: MetadataFolder, folder: Faulty, hint: bytes | None
) -> None:
    for entry in "ABC":
        commit(table, entry)
    folder.delete("version-hint.text")
    if hint is not None:
        folder.replace("version-hint.text", hint)

    assert entries(table.current()) == ["A", "B", "C"]
    assert commit(table, "D").name == "v4.metadata.json"
    assert folder.read("version-hint.text") == b"4"


def test_the_hint_that_hadoop_wrote_is_replaced_with_its_checksum(table: MetadataFolder, folder: Faulty) -> None:
    """Otherwise Hadoop would refuse to read the new one."""
    commit(table, "A")
    (Path(local_path(folder.uri)) / ".version-hint.text.crc").write_bytes(b"crc")

    commit(table, "B")

    assert names(folder) == {"v1.metadata.json", "v2.metadata.json", "version-hint.text"}


@pytest.mark.parametrize("content", [b"", b'{"table-uuid": "9c', b"[]", b'{"a": 1}', b"\xff\xfe"])
def test_a_newest_version_that_cannot_be_read_stops_readers_and_writers(
    table: MetadataFolder, folder: Faulty, content: bytes
) -> None:
    """A step back to the version before would hide a commit, or write over it."""
    commit(table, "A")
    folder.create("v2.metadata.json", content)

    with pytest.raises(
        TableError, match=r"metadata/v2\.metadata\.json is the newest version .* is not readable"
    ) as refused:
        table.current()

    assert refused.value.reason == "MetadataUnreadable"


def test_after_a_version_is_deleted_between_listing_and_reading_the_folder_is_listed_again(
    table: MetadataFolder, folder: Faulty
) -> None:
    commit(table, "A")

    class Late(FolderListing):
        """Of its first listing, everything is overtaken and cleaned up."""

        listings = 0

        def names(self, prefix: str) -> list[str]:
            found = super().names(prefix)
            self.listings += 1
            if self.listings == 1:
                commit(table, "B", keep=1)
                commit(table, "C", keep=1)
            return found

    assert entries(MetadataFolder(Late(LocalStore(), folder.uri)).current()) == ["A", "B", "C"]
    assert "v1.metadata.json" not in names(folder)


def test_versions_that_vanish_faster_than_they_are_read_are_no_endless_wait(folder: Faulty) -> None:
    class Vanishing(FolderListing):
        def names(self, prefix: str) -> list[str]:  # noqa: ARG002
            return ["v1.metadata.json"]

    with pytest.raises(TransientError, match="deleted before it was read"):
        MetadataFolder(Vanishing(LocalStore(), folder.uri)).current()


def test_compressed_versions_of_other_writers_are_read_and_followed(table: MetadataFolder, folder: Faulty) -> None:
    import gzip

    folder.create("v7.gz.metadata.json", gzip.compress(document("A").encode()))

    assert commit(table, "B").name == "v8.metadata.json"
    assert entries(table.current()) == ["A", "B"]


# --- committing ---------------------------------------------------------------------------------------------------------
def test_of_two_writers_on_one_base_one_loses_and_nothing_is_overwritten(table: MetadataFolder, folder: Faulty) -> None:
    base = commit(table, "A")
    won = table.commit(base, document("A", "B"))

    with pytest.raises(ConflictError, match=r"another writer created .*v2\.metadata\.json") as lost:
        table.commit(base, document("A", "C"))

    assert (lost.value.reason, entries(table.current()), won.number) == ("VersionTaken", ["A", "B"], 2)
    assert not [n for n in names(folder) if n.startswith(".")]


@pytest.mark.parametrize("there", [True, False])
def test_of_two_creators_of_a_table_one_loses(table: MetadataFolder, there: bool) -> None:
    """Also when the winner's first version is cleaned up already."""
    for number in range(1 if there else 5):
        commit(table, str(number), keep=2)

    with pytest.raises(ConflictError, match="another writer"):
        table.commit(None, document("Z", uuid="0" * 36))

    assert "Z" not in entries(table.current())


def test_a_commit_whose_answer_was_lost_is_found_and_one_that_was_lost_on_its_way_is_unknown(
    table: MetadataFolder, folder: Faulty
) -> None:
    base = commit(table, "A")
    folder.fault = break_down
    assert table.commit(base, document("A", "B")).number == 2

    folder.fault, folder.when = break_down, "before"
    expected = r"v3\.metadata\.json was created \(OSError\), and the file does not exist"
    with pytest.raises(UnknownCommitState, match=expected):
        commit(table, "C")


def test_a_lost_answer_to_a_commit_that_another_had_won_is_a_conflict(table: MetadataFolder, folder: Faulty) -> None:
    base = commit(table, "A")
    folder.when = "before"

    def overtake_and_break_down() -> None:
        MetadataFolder(open_folder(folder.uri, {})).commit(base, document("A", "C"))
        break_down()

    folder.fault = overtake_and_break_down

    with pytest.raises(ConflictError, match="VersionTaken"):
        table.commit(base, document("A", "B"))


def test_a_writer_overtaken_by_all_kept_versions_does_not_take_its_commit_for_landed(
    table: MetadataFolder, folder: Faulty
) -> None:
    """The number it creates was in use, and is free again: the file is made, far below the newest version."""
    base = commit(table, "A", keep=2)
    folder.when = "before"
    folder.fault = lambda: [commit(MetadataFolder(open_folder(folder.uri, {})), e, keep=2) for e in "BCDEF"]

    with pytest.raises(UnknownCommitState, match="not part of the table's history"):
        table.commit(base, document("A", "Z", keep=2))

    assert entries(table.current()) == list("ABCDEF")
    commit(table, "G", keep=2)
    assert names(folder) == {f"v{n}.metadata.json" for n in (5, 6, 7)} | {"version-hint.text"}


def test_clean_up_that_fails_leaves_the_later_versions(table: MetadataFolder, folder: Faulty) -> None:
    """A version is never gone before the one below it: the check of an overtaken writer leans on that."""

    class Stuck(FolderListing):
        def delete(self, name: str) -> None:
            if name == "v2.metadata.json":
                raise PermissionError(name)
            super().delete(name)

    for entry in "ABCD":
        commit(table, entry)
    stuck = MetadataFolder(Stuck(LocalStore(), folder.uri))

    done = commit(stuck, "E", keep=1)

    assert done.number == 5
    assert {n for n in names(folder) if n.startswith("v") and "hint" not in n} == {
        f"v{n}.metadata.json" for n in (2, 3, 4, 5)
    }


def test_the_error_for_a_refusing_storage_says_that_nothing_was_committed(tmp_path: Path) -> None:
    (tmp_path / "t").write_text("a file where the table's folder should be")

    with pytest.raises(TransientError, match=r"v1\.metadata\.json: creating it was refused .* Nothing was committed"):
        MetadataFolder(open_folder(f"file://{tmp_path}/t/metadata", {})).commit(None, document("A"))


# --- racing, and dying ------------------------------------------------------------------------------------------------
def append_each(uri: str, writer: int) -> None:
    """One process: reads, adds an entry, commits; plans again when it lost."""
    table = MetadataFolder(open_folder(uri, {}))
    for n in range(EACH):
        entry = f"{writer}.{n}"
        while True:
            base = table.current()
            assert base is not None
            if entry in entries(base):  # an earlier attempt of which nobody knew
                break
            try:
                table.commit(base, document(*entries(base), entry, keep=3))
            except (ConflictError, UnknownCommitState):
                continue
            break


def confuse(uri: str, until: threading.Event) -> None:
    """Another engine's hint: gone, old, ahead of everything, half written."""
    folder, n = open_folder(uri, {}), 0
    while not until.is_set():
        n += 1
        folder.delete("version-hint.text") if n % 4 == 0 else folder.replace(
            "version-hint.text", [b"1", b"9999", b"x"][n % 3]
        )


def test_racing_processes_make_every_commit_once_with_any_version_hint(table: MetadataFolder, folder: Faulty) -> None:
    commit(table, "first", keep=3)
    done = threading.Event()
    vandal = threading.Thread(target=confuse, args=(folder.uri, done))
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=append_each, args=(folder.uri, n)) for n in range(WRITERS)]
    vandal.start()
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(60)
    done.set()
    vandal.join(10)

    assert [w.exitcode for w in writers] == [0] * WRITERS
    found = table.current()
    assert found is not None
    assert sorted(entries(found)) == sorted(["first", *(f"{w}.{n}" for w in range(WRITERS) for n in range(EACH))])
    assert found.number == 1 + WRITERS * EACH  # no version without a commit, and none that holds two


def die_in(uri: str, when: str) -> None:
    folder = Faulty(LocalStore(), uri)
    folder.fault, folder.when = (lambda: os._exit(137)), when
    table = MetadataFolder(folder)
    base = table.current()
    table.commit(base, document(*entries(base), "B"))


@pytest.mark.parametrize(("when", "expected"), [("before", ["A"]), ("after", ["A", "B"])])
def test_a_writer_that_dies_has_committed_or_not_and_leaves_nothing_in_the_way(
    table: MetadataFolder, folder: Faulty, when: str, expected: list[str]
) -> None:
    """`after`: before the hint was written."""
    commit(table, "A")
    process = multiprocessing.get_context("spawn").Process(target=die_in, args=(folder.uri, when))
    process.start()
    process.join(30)

    assert process.exitcode == 137
    assert (entries(table.current()), folder.read("version-hint.text")) == (expected, b"1")
    assert entries(commit(table, "C")) == [*expected, "C"]


PLAYERS, TURNS_EACH = 3, 4


class Stepped:
    """A folder in memory. Before each act of a writer it is somebody's turn to go on."""

    uri = "mem://lake/t/metadata"

    def __init__(self, files: dict[str, bytes], wait: Callable[[], None]) -> None:
        self._files, self._wait = files, wait

    def names(self, prefix: str) -> list[str]:
        self._wait()
        return [n for n in self._files if n.startswith(prefix)]

    def read(self, name: str) -> bytes | None:
        self._wait()
        return self._files.get(name)

    def create(self, name: str, content: bytes) -> bool:
        self._wait()
        return self._files.setdefault(name, content) is content

    def replace(self, name: str, content: bytes) -> None:
        self._wait()
        self._files[name] = content

    def delete(self, name: str) -> None:
        self._wait()
        self._files.pop(name, None)


class Turns:
    """One thread for each writer, of which one goes on at a time: by the schedule, then one after the other."""

    def __init__(self, works: Sequence[Callable[[Callable[[], None]], None]]) -> None:
        self._go = [threading.Semaphore(0) for _ in works]
        self._waits, self._alive = threading.Semaphore(0), list(range(len(works)))
        self._failures: list[BaseException] = []
        self._threads = [threading.Thread(target=self._run, args=(n, w), daemon=True) for n, w in enumerate(works)]

    def play(self, schedule: Sequence[tuple[int, int]]) -> None:
        """Args:
        schedule: Who goes on, and for how many steps.
        """
        for thread in self._threads:
            thread.start()
            assert self._waits.acquire(timeout=10)
        for writer, steps in schedule:
            for _ in range(steps):
                if writer in self._alive:
                    self._step(writer)
        while self._alive:
            self._step(self._alive[0])
        assert not self._failures, self._failures

    def _step(self, writer: int) -> None:
        self._go[writer].release()
        assert self._waits.acquire(timeout=10)

    def _run(self, writer: int, work: Callable[[Callable[[], None]], None]) -> None:
        def wait() -> None:
            self._waits.release()
            assert self._go[writer].acquire(timeout=10)

        try:
            work(wait)
        except BaseException as e:
            self._failures.append(e)
        finally:
            self._alive.remove(writer)
            self._waits.release()


def small_document(entries: Sequence[str], keep: int) -> str:
    properties = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": str(keep),
    }
    return json.dumps({"table-uuid": "u", "location": "mem://lake/t", "properties": properties, "entries": entries})


@given(st.lists(st.tuples(st.integers(0, PLAYERS - 1), st.integers(1, 40)), max_size=30), st.integers(1, 3))
def test_in_whatever_order_writers_take_their_steps_each_commit_is_there_once(
    schedule: list[tuple[int, int]], keep: int
) -> None:
    files = {"v1.metadata.json": small_document([], keep).encode()}

    def writer(number: int) -> Callable[[Callable[[], None]], None]:
        def work(wait: Callable[[], None]) -> None:
            table = MetadataFolder(Stepped(files, wait))
            for entry in (f"{number}.{n}" for n in range(TURNS_EACH)):
                while True:
                    base = table.current()
                    assert base is not None
                    if entry in base.document["entries"]:
                        break
                    try:
                        table.commit(base, small_document([*base.document["entries"], entry], keep))
                        break
                    except (ConflictError, UnknownCommitState):
                        continue  # looks again, as Lethe looks into the ledger

        return work

    Turns([writer(n) for n in range(PLAYERS)]).play(schedule)

    newest = max(int(name.split(".")[0][1:]) for name in files if name != "version-hint.text")
    found = json.loads(files[f"v{newest}.metadata.json"])["entries"]
    assert sorted(found) == sorted(f"{w}.{n}" for w in range(PLAYERS) for n in range(TURNS_EACH))
    assert newest == 1 + PLAYERS * TURNS_EACH


FOLDER = "file:///lake/air/flights/metadata"


NEWEST = {
    # Object stores list v10 before v9.
    "the highest number": (["v1.metadata.json", "v10.metadata.json", "v9.metadata.json"], "v10.metadata.json"),
    # Passing it over would mean to commit beside it.
    "an unknown spelling counts": (["v3.metadata.json", "v4.zst.metadata.json"], "v4.zst.metadata.json"),
    "other files are no versions": (["version-hint.text", "snap-1-2.avro", ".v3.metadata.json.crc", "v.json"], None),
    "nor is another writer's metadata": ([".v3.metadata.json.8a1f", "00003-x.metadata.json"], None),
}


@pytest.mark.parametrize(("names", "expected"), NEWEST.values(), ids=NEWEST)
def test_which_version_is_the_newest(names: list[str], expected: str | None) -> None:
    assert newest(names, FOLDER) == newest(reversed(names), FOLDER) == expected


def test_two_files_that_claim_one_number_are_refused_by_name() -> None:
    names = ["v4.metadata.json", "v3.metadata.json", "v4.gz.metadata.json"]

    with pytest.raises(
        TableError, match=rf"{FOLDER}: v4.gz.metadata.json and v4.metadata.json have the same"
    ) as refused:
        newest(names, FOLDER)

    assert refused.value.reason == "MetadataAmbiguous"
    assert newest([*names, "v5.metadata.json"], FOLDER) == "v5.metadata.json"


@pytest.mark.parametrize(
    ("properties", "kept"),
    [
        ({}, None),
        ({"write.metadata.delete-after-commit.enabled": "false"}, None),
        ({"write.metadata.delete-after-commit.enabled": "TRUE"}, 100),
        ({"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "7"}, 7),
        ({"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "0"}, 1),
        ({"write.metadata.delete-after-commit.enabled": "true", "write.metadata.previous-versions-max": "x"}, 100),
    ],
)
def test_how_many_versions_are_kept_is_icebergs_own_setting(properties: dict[str, str], kept: int | None) -> None:
    assert kept_versions(properties) == kept


@given(st.sets(st.integers(1, 60)), st.integers(1, 60), st.integers(1, 60))
def test_the_oldest_go_first_and_the_newest_and_those_to_keep_stay(
    versions: set[int], committed: int, keep: int
) -> None:
    gone = [version_of(n) for n in outdated([file_of(v) for v in versions], committed, keep)]

    assert gone == sorted(v for v in versions if v < committed - keep)
