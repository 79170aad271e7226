"""What a commit may land on, which lists of ids it takes, and what it writes beside rows: deletion vectors and batches."""

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lethe import batches_table
from lethe.base.names import LEDGER_SINCE
from lethe.contract.result import RequestResult
from lethe.contract.run import RestatementRequest
from lethe.iceberg import catalogs
from lethe.iceberg.facts import TableFacts
from lethe.iceberg.position_deletes import of_blob, to_blob
from lethe.ledger.ledger import EMPTY
from lethe.ledger.lineage import Resolution, Snapshot
from lethe.ledger_store import Loaded
from lethe.restatement.group import parse_ids
from lethe_spark.commit import ledger_commit
from lethe_spark.commit.replacement_files import with_ids
from lethe_spark.commit.table_state import Base
from lethe_spark.jvm.commit import Ancestor, Expectation, objection
from lethe_spark.jvm.data_files import CHARACTERS_AT_ONCE, chunks
from pyiceberg.table.deletion_vector import DeletionVector, _extract_vector_payload
from pyroaring import FrozenBitMap64

from tests.support.builders import FIELD, RUN, a_history, a_request, a_snapshot


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


CARRIER = a_snapshot(1, ledger="L1", lethe__run_id=RUN, lethe__foreign_files="false")


def a_base(resolution: Resolution, *snapshots: Snapshot, since: str = "0") -> Base:
    facts = TableFacts(
        "t", "uuid", "s3://lake/t", 2, None, None, properties={LEDGER_SINCE: since}, snapshots=a_history(*snapshots)
    )
    nobody_asks: Any = None
    return Base(nobody_asks, facts, Loaded(EMPTY, resolution), FIELD)


def foreign(operation: str) -> Snapshot:
    return a_snapshot(2, 1, operation=operation)


CASES = {
    "a table of ours alone": (a_base(Resolution("L1", 1), CARRIER), False),
    "a new table": (a_base(Resolution(None, None)), False),
    "a table that was there before Lethe": (a_base(Resolution(None, None), since="7"), True),
    "a foreign append": (a_base(Resolution("L1", 1, (2,)), CARRIER, foreign("append")), True),
    "a foreign copy-on-write": (a_base(Resolution("L1", 1, (2,)), CARRIER, foreign("overwrite")), True),
    "a foreign compaction": (a_base(Resolution("L1", 1, (2,)), CARRIER, foreign("replace")), False),
    "a foreign deletion": (a_base(Resolution("L1", 1, (2,)), CARRIER, foreign("delete")), False),
    "a foreign append before the last commit": (
        a_base(Resolution("L1", 1), a_snapshot(1, ledger="L1", lethe__foreign_files="true")),
        True,
    ),
    "a carrier that does not say": (a_base(Resolution("L1", 1), a_snapshot(1, ledger="L1")), True),
    "a carrier that was expired": (a_base(Resolution("L1", 1, (2,)), foreign("replace")), True),
}


@pytest.mark.parametrize(("base", "expected"), CASES.values(), ids=CASES)
def test_whether_files_of_other_writers_may_be_there(base: Base, expected: bool) -> None:
    assert base.has_foreign_files is expected


class Catalogs:
    """Counts the catalogs that are opened."""

    def __init__(self) -> None:
        self.properties = {"uri": "sqlite:////tmp/a.db"}
        self.opened: list[object] = []
        self.used: list[object] = []
        self.error: Exception | None = None
        self.now = 1000.0

    def load(self, _name: str) -> object:
        self.opened.append(object())
        return self.opened[-1]

    def update(self, catalog: object, *_: Any) -> None:
        self.used.append(catalog)
        if self.error is not None:
            raise self.error


@pytest.fixture
def configured(monkeypatch: pytest.MonkeyPatch) -> Catalogs:
    found = Catalogs()
    monkeypatch.setattr(catalogs, "properties", lambda _: dict(found.properties))
    monkeypatch.setattr(catalogs, "load", found.load)
    monkeypatch.setattr(batches_table, "bring_up_to_date", found.update)
    monkeypatch.setattr(ledger_commit, "_open", {})
    monkeypatch.setattr(ledger_commit.time, "monotonic", lambda: found.now)
    return found


def keep_up() -> str:
    context: Any = SimpleNamespace(batch_column="batch_id", step=lambda _: None)
    table: Any = SimpleNamespace(catalog="main", name="air.flights", full_name="main.air.flights")
    return ledger_commit.keep_up(context, table, create=False)


def test_updates_soon_after_each_other_share_a_catalog(configured: Catalogs) -> None:
    assert (keep_up(), keep_up()) == ("", "")

    assert configured.used == [configured.opened[0]] * 2


def later(found: Catalogs) -> None:
    found.now += ledger_commit.OPEN_SECONDS


def elsewhere(found: Catalogs) -> None:
    found.properties = {"uri": "sqlite:////tmp/b.db"}


def failed(found: Catalogs) -> None:
    found.error = ConnectionError("gone")
    assert keep_up() == "ConnectionError"
    found.opened, found.used, found.error = found.opened[:1], found.used[:1], None


@pytest.mark.parametrize("happens", [later, elsewhere, failed])
def test_it_is_opened_again_after_a_while_with_other_properties_or_after_a_failure(
    configured: Catalogs, happens: Callable[[Catalogs], None]
) -> None:
    keep_up()
    happens(configured)

    assert keep_up() == ""

    assert configured.used == configured.opened
    assert len(configured.opened) == 2


ROOT = Ancestor(1, None, None)


def carrier(id: int, ledger: str) -> Ancestor:
    return Ancestor(id, id - 1, ledger)


def bare(id: int, parent: int | None = None) -> Ancestor:
    return Ancestor(id, id - 1 if parent is None else parent, None)


@pytest.mark.parametrize(
    ("expected", "history"),
    [
        (Expectation(None), []),
        (Expectation(None, frozenset({1})), [ROOT]),
        (Expectation("L1"), [carrier(5, "L1"), bare(4)]),
        (Expectation("L1", frozenset({6, 7})), [bare(7), bare(6), carrier(5, "L1")]),
        # The carrier has expired; the plan resolved its ledger through the carriers list.
        (Expectation("L1", frozenset({7})), [bare(7)]),
        # PyIceberg took the id of the parent away with it.
        (Expectation("L1", frozenset({1}), expired=True), [ROOT]),
    ],
)
def test_a_history_that_was_planned_on_lets_the_commit_pass(expected: Expectation, history: list[Ancestor]) -> None:
    assert objection(expected, history) is None


@pytest.mark.parametrize(
    ("expected", "history", "problem"),
    [
        (Expectation("L1"), [carrier(6, "L2"), carrier(5, "L1")], "snapshot 6 has set L2 since then"),
        (Expectation(None), [carrier(6, "L2")], "planned on ledger None"),
        (Expectation("L1"), [bare(6), carrier(5, "L1")], "snapshot 6, by another writer"),
        (Expectation("L1", frozenset({6})), [bare(7), bare(6), carrier(5, "L1")], "snapshot 7, by another writer"),
        (Expectation(None), [ROOT], "snapshot 1, by another writer"),
        # Rolled back to before the ledger, or replaced by another table.
        (Expectation("L1"), [], "no snapshot of the current history carries a ledger"),
        (Expectation("L1", frozenset({1})), [ROOT], "no snapshot of the current history carries a ledger"),
    ],
)
def test_any_other_history_stops_it_with_the_reason(
    expected: Expectation, history: list[Ancestor], problem: str
) -> None:
    assert problem in (objection(expected, history) or "")


def test_the_check_reads_no_snapshot_below_the_first_carrier() -> None:
    """It runs inside each attempt: its cost must not grow with the number of commits before."""

    def history() -> Iterator[Ancestor]:
        yield Ancestor(3, 2, None)
        yield Ancestor(2, 1, "L2")
        raise AssertionError("read below the carrier")

    assert objection(Expectation("L2", frozenset({3})), history()) is None
    assert "L2" in (objection(Expectation("L1", frozenset({3})), history()) or "")


positions = st.sets(st.integers(0, 2**33) | st.integers(0, 200), max_size=60).map(FrozenBitMap64)


@given(positions)
def test_what_is_written_is_read_back(wanted: FrozenBitMap64) -> None:
    assert of_blob(to_blob(wanted)) == wanted


@given(positions)
def test_other_libraries_read_the_same_positions(wanted: FrozenBitMap64) -> None:
    bitmaps = DeletionVector._deserialize_bitmap(_extract_vector_payload(to_blob(wanted)))

    assert [(high << 32) + low for high, bitmap in enumerate(bitmaps) for low in bitmap] == list(wanted)


def test_the_frame_is_that_of_the_specification() -> None:
    blob = to_blob(FrozenBitMap64([0]))

    assert blob[:4] == (len(blob) - 8).to_bytes(4, "big")
    assert blob[4:8] == bytes.fromhex("d1d33964")


def test_documents_are_divided_by_their_length_and_keep_their_order() -> None:
    small, half, huge = "s", "h" * (CHARACTERS_AT_ONCE // 2), "x" * (2 * CHARACTERS_AT_ONCE)

    found = list(chunks([small, half, half, huge, small, small]))

    assert found == [[small, half], [half], [huge], [small, small]]
    assert list(chunks([])) == []
