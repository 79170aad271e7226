"""Uploads that are interrupted at each step, and several requests for one upload at the same time."""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from lethe.base import names
from lethe.storage.local_store import LocalStore
from lethe_gateway.problems import Kind, Problem
from lethe_gateway.uploads import check
from lethe_gateway.uploads.manifest import FileState, UploadState

from tests.support.buffers import batches_in
from tests.support.upload_site import UPLOAD, Site, entries, parquet, problem, states

# --- interrupted at each step ---


class Killed(BaseException):
    """The process ends here."""


def kill_at(monkeypatch: pytest.MonkeyPatch, method: str, ending: str) -> None:
    """The next call of a method of the store for an object whose URI ends so does not return."""
    original = getattr(LocalStore, method)
    armed = [True]

    def dies(self: LocalStore, of: Any, *args: object, **named: object) -> object:
        if armed and getattr(of, "key", of).endswith(ending):
            armed.clear()
            raise Killed
        return original(self, of, *args, **named)

    monkeypatch.setattr(LocalStore, method, dies)


@pytest.mark.parametrize("ending", [".outcome", names.SUCCESS_MARKER, ".published"])
def test_a_completion_that_was_interrupted_is_finished_by_the_next(
    sent: Site, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    kill_at(monkeypatch, "put_if_absent", ending)
    with pytest.raises(Killed):
        sent.complete()
    assert batches_in(sent.uri)[0].complete == (ending == ".published")

    assert sent.complete().state is UploadState.COMPLETE

    assert batches_in(sent.uri)[0].complete


@pytest.mark.parametrize("ending", ["part-0.parquet", "part-1.parquet", "manifest.json", ".outcome"])
def test_an_abandoning_that_was_interrupted_is_finished_by_the_next_opening(
    sent: Site, monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    kill_at(monkeypatch, "delete_unchanged" if ending == "manifest.json" else "remove", ending)
    with pytest.raises(Killed):
        sent.uploads.abandon(sent.buffer(), UPLOAD)

    view, new = sent.open()

    assert (new, states(view)) == (True, [FileState.MISSING] * 2)
    sent.send()
    assert sent.complete().state is UploadState.COMPLETE
    assert batches_in(sent.uri)[0].complete


def test_an_interrupted_abandoning_is_never_completed(sent: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    kill_at(monkeypatch, "remove", "part-1.parquet")
    with pytest.raises(Killed):
        sent.uploads.abandon(sent.buffer(), UPLOAD)

    problem(Kind.UPLOAD_ENDED, sent.complete)

    assert not batches_in(sent.uri)[0].complete


# --- at the same time ---


def test_of_clients_that_open_one_id_at_once_one_is_first(site: Site) -> None:
    contents = [{f"part-{n}.parquet": parquet(n)} for n in range(8)]
    barrier = threading.Barrier(len(contents))

    def opened(files: dict[str, bytes]) -> bool | Kind:
        barrier.wait()
        try:
            return site.open(entries(files))[1]
        except Problem as e:
            return e.kind

    with ThreadPoolExecutor(len(contents)) as pool:
        found = list(pool.map(opened, contents))
    assert sorted(map(str, found)) == sorted(map(str, [*[Kind.UPLOAD_CONFLICT] * 7, True]))


def during_check(monkeypatch: pytest.MonkeyPatch, work: Callable[[], object]) -> None:
    """Something happens after a completion has found all files, and before it decides."""
    original = check.rejection

    def meanwhile(*args: Any) -> Any:
        monkeypatch.setattr(check, "rejection", original)
        work()
        return original(*args)

    monkeypatch.setattr(check, "rejection", meanwhile)


def test_an_upload_that_is_abandoned_while_it_is_completed_is_not_complete(
    sent: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(check, "rejection", _abandoned_first(sent))

    problem(Kind.NOT_FOUND, sent.complete)

    assert sent.files() == []


def _abandoned_first(site: Site) -> Callable[..., Any]:
    def rejection(*_: Any) -> Any:
        site.uploads.abandon(site.buffer(), UPLOAD)
        return None, True

    return rejection


def test_a_completion_of_an_upload_that_was_opened_again_meanwhile_changes_nothing(
    sent: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    def rejection(*_: Any) -> Any:
        sent.uploads.abandon(sent.buffer(), UPLOAD)
        sent.open()
        return None, True

    monkeypatch.setattr(check, "rejection", rejection)

    problem(Kind.NOT_FOUND, sent.complete)

    assert sent.uploads.view(sent.buffer(), UPLOAD).state is UploadState.OPEN
    assert batches_in(sent.uri) == []


def test_an_upload_whose_outcome_is_removed_while_it_is_completed_is_not_complete(
    sent: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody else's outcome was there when this one was written, and is gone when it is read."""
    put = LocalStore.put_if_absent

    def exists(self: LocalStore, uri: str, *args: Any, **named: Any) -> bool:
        return False if uri.endswith(".outcome") else put(self, uri, *args, **named)

    monkeypatch.setattr(LocalStore, "put_if_absent", exists)

    problem(Kind.NOT_FOUND, sent.complete)

    assert not batches_in(sent.uri)[0].complete


def test_a_completion_wins_over_an_abandoning_that_comes_later(sent: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    during_check(monkeypatch, sent.complete)

    assert sent.complete().state is UploadState.COMPLETE

    problem(Kind.UPLOAD_ENDED, lambda: sent.uploads.abandon(sent.buffer(), UPLOAD))
    assert batches_in(sent.uri)[0].complete
