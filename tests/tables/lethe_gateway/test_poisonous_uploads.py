"""An upload that kills or stalls its decoder is refused, and holds up no other Dataset."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from lethe.decoder.limits import Limits
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.uploads import check
from lethe_gateway.uploads.check import Turns

from tests.support import poison
from tests.support.buffer_formats import some_rows, written
from tests.support.upload_site import Site

SLOW = poison.rows_of_no_bytes()


def rejected(site: Site, namespace: str, dataset: str, content: bytes) -> str:
    """What a completion of this file says; "": nothing."""
    site.spec |= {"buffer": {"uri": site.uri, "format": "avro"}, "schemaEvolution": "AddColumns"}
    path = site.folder / f"{namespace}-{dataset}-{threading.get_ident()}.avro"
    path.write_bytes(content)
    resource = site.resource()
    resource["metadata"] |= {"namespace": namespace, "name": dataset}
    buffer = site.buffer()
    object.__setattr__(buffer.dataset.meta, "namespace", namespace)
    object.__setattr__(buffer.dataset.meta, "name", dataset)
    try:
        refusal, _ = check.rejection(buffer, "B", {f"file://{path}": (len(content), "")})
    except Problem as e:
        return e.kind.name
    return refusal.reason if refusal else ""


@pytest.fixture(autouse=True)
def limits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the decoder, lower than the documented ones: a file that takes them all ends soon."""
    monkeypatch.setattr("lethe.ingest.buffer_files.limits_here", lambda: Limits(cpu_seconds=1, rows=10**12))


def test_it_is_refused_by_name(site: Site) -> None:
    assert rejected(site, "a", "flights", SLOW) == "FileTooCostly"


def test_ten_of_them_leave_a_place_to_another_dataset_and_end_nothing(
    site: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The other one is checked while all ten are under way or wait."""
    monkeypatch.setattr(check, "WAIT_SECONDS", 2.0)
    good = written("avro", some_rows(3).select(["v"]))
    with ThreadPoolExecutor(10) as pool:
        slow = [pool.submit(rejected, site, "a", f"d{n % 4}", SLOW) for n in range(10)]
        until = time.monotonic() + 30
        while len(check._TURNS._working) < 2:
            assert time.monotonic() < until
            time.sleep(0.01)

        others = [rejected(site, "b", "flights", good) for _ in range(2)]

        assert not all(s.done() for s in slow)
        # Those that wait too long behind the others are told to come back.
        assert "FileTooCostly" in {s.result() for s in slow} <= {"FileTooCostly", Kind.OVERLOADED.name}
    assert others == [""] * 2


def test_who_waits_too_long_is_told_to_come_back(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(check, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(check, "_TURNS", Turns(places=1, of_namespace=1, of_dataset=1, quick_seconds=60))

    answer = check._TURNS.carry_out("a", "flights", 0, lambda _: rejected(site, "a", "flights", SLOW))

    assert answer == Kind.OVERLOADED.name
