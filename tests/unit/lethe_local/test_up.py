"""What `lethe local up` does while it runs: it starts ended parts again, and survives what happens to its folder."""

import base64
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from lethe_local import up
from lethe_local.api.objects import SECRETS, LocalObjects
from lethe_local.api.store import LocalApiStore
from lethe_local.folder import NAMESPACE, Folder
from lethe_local.up import CATALOGS_SECRET, LONGEST_PAUSE_SECONDS, Local, LocalProcess

from tests.support.clock import wait_until

LIMIT_SECONDS = 30


def test_a_part_that_has_run_for_long_starts_again_as_soon_as_after_its_first_failure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = LocalProcess("operator", [sys.executable, "-c", "pass"], {}, tmp_path)
    now = time.monotonic()

    def pause_after(seconds: float) -> float:
        """Start the part, let it end after this time, and return for how long it then stays down."""
        nonlocal now
        part.look()
        running = part.running
        assert running is not None
        wait_until(lambda: running.exit_code is not None, LIMIT_SECONDS)
        now += seconds
        part.look()
        pause, now = part.starts - now, part.starts
        return pause

    monkeypatch.setattr(up, "time", SimpleNamespace(monotonic=lambda: now))

    assert [pause_after(1), pause_after(1), pause_after(1)] == pytest.approx([1, 2, 4])
    assert pause_after(2 * LONGEST_PAUSE_SECONDS) == pytest.approx(1)


def test_it_goes_on_while_the_catalogs_are_edited_and_when_their_secret_is_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(up, "LOOK_SECONDS", 0)
    folder = Folder(tmp_path)
    folder.prepare()
    local, store = Local(folder), LocalApiStore(folder.state)
    local.objects = LocalObjects(store)
    local._provide_objects()
    secrets = local.objects.kinds[SECRETS.api, SECRETS.plural]
    saved, moved = folder.catalogs.read_text(), tmp_path / ".pyiceberg.yaml~"

    def look_after(change: Callable[[], object]) -> None:
        """Change something between two looks, and let a third one follow."""
        looks = iter([lambda: False, lambda: bool(change()) and False, lambda: False, lambda: True])
        local.watch(lambda: next(looks)())

    # As vim does: the file is away for a moment.
    look_after(lambda: folder.catalogs.rename(moved))
    look_after(lambda: folder.catalogs.write_text(f"{saved}# edited"))
    look_after(lambda: local.objects.delete(secrets, NAMESPACE, CATALOGS_SECRET))

    stored = local.objects.get(secrets, NAMESPACE, CATALOGS_SECRET)["data"][".pyiceberg.yaml"]
    assert base64.b64decode(stored).decode() == f"{saved}# edited"
    store.close()
