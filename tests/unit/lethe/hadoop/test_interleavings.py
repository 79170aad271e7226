"""Whatever steps of several writers come between one another, each commit is there once: also while old versions are
deleted so soon that a writer's own number comes free again.
"""

import json
import threading
from collections.abc import Callable, Sequence

from hypothesis import given
from hypothesis import strategies as st
from lethe.base.errors import ConflictError, UnknownCommitState
from lethe.hadoop import MetadataFolder

WRITERS, EACH = 3, 4


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


def document(entries: Sequence[str], keep: int) -> str:
    properties = {
        "write.metadata.delete-after-commit.enabled": "true",
        "write.metadata.previous-versions-max": str(keep),
    }
    return json.dumps({"table-uuid": "u", "location": "mem://lake/t", "properties": properties, "entries": entries})


@given(st.lists(st.tuples(st.integers(0, WRITERS - 1), st.integers(1, 40)), max_size=30), st.integers(1, 3))
def test_in_whatever_order_writers_take_their_steps_each_commit_is_there_once(
    schedule: list[tuple[int, int]], keep: int
) -> None:
    files = {"v1.metadata.json": document([], keep).encode()}

    def writer(number: int) -> Callable[[Callable[[], None]], None]:
        def work(wait: Callable[[], None]) -> None:
            table = MetadataFolder(Stepped(files, wait))
            for entry in (f"{number}.{n}" for n in range(EACH)):
                while True:
                    base = table.current()
                    assert base is not None
                    if entry in base.document["entries"]:
                        break
                    try:
                        table.commit(base, document([*base.document["entries"], entry], keep))
                        break
                    except (ConflictError, UnknownCommitState):
                        continue  # looks again, as Lethe looks into the ledger

        return work

    Turns([writer(n) for n in range(WRITERS)]).play(schedule)

    newest = max(int(name.split(".")[0][1:]) for name in files if name != "version-hint.text")
    found = json.loads(files[f"v{newest}.metadata.json"])["entries"]
    assert sorted(found) == sorted(f"{w}.{n}" for w in range(WRITERS) for n in range(EACH))
    assert newest == 1 + WRITERS * EACH
