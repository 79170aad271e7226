"""Refused batches on their way out of a buffer, on files and on a real S3 server: nothing is lost, and nothing new touched,
wherever it stops. Without Spark: what a run does once its refusal is committed.
"""

import json
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from lethe.base.errors import Verdict
from lethe.base.objects import BufferedObject
from lethe.buffer.layout import is_data
from lethe.buffer.promotion import is_file, refused_folder
from lethe.contract.run import BufferRef
from lethe.ledger.ledger import BatchEntry, BatchState
from lethe.storage.object_store import open_store
from lethe_spark.jobs.consolidation.promote import set_one_aside
from lethe_spark.run.progress import Reporter

from tests.support.builders import RUN, a_run
from tests.support.lake import Recorder
from tests.support.servers.s3 import S3
from tests.support.steps import Killed, SteppedContext, die

STEPS = ["refused-copied", "refused-explained", "refused-unmarked"]


@dataclass(frozen=True)
class Buffer:
    """A buffer with one batch of two files, which the ledger says was refused."""

    uri: str
    properties: dict[str, str]
    entry: BatchEntry
    put: Callable[[str, bytes], object]

    def aside(self, *, judged: bool = True, **at: Callable[[], object]) -> None:
        layout = "File" if is_file(self.uri, self.entry) else "Directory"
        spec = a_run(buffer=BufferRef(uri=self.uri, layout=layout))
        hooks = {name.replace("_", "-"): happening for name, happening in at.items()}
        reporter = Reporter(spec, Recorder())
        context = SteppedContext(spec, reporter, self.properties, spark=None, at=hooks)  # type: ignore[arg-type]
        set_one_aside(context, open_store(self.uri, self.properties), self.entry, was_judged=judged)

    def names(self) -> dict[str, tuple[int, str]]:
        """What there is, by its name below the buffer."""
        found = open_store(self.uri, self.properties).list(self.uri)
        return {o.key.removeprefix(f"{self.uri}/"): (o.size, o.etag) for o in found}

    def area(self) -> str:
        return refused_folder(self.uri, self.entry).removeprefix(f"{self.uri}/")


def refused(uri: str, properties: dict[str, str], put: Callable[[str, bytes], object]) -> Buffer:
    for name, content in (("day=1/p 1é", b"good"), ("p2", b"bad!"), ("_SUCCESS", b"")):
        put(f"batch_id=A/{name}", content)
    objects = [BufferedObject(o.key, o.size, o.etag) for o in open_store(uri, properties).list(uri) if is_data(o.key)]
    now = datetime.now(UTC) + timedelta(seconds=1)
    entry = BatchEntry(
        "A", BatchState.REFUSED, RUN, now, refusal=Verdict("UnreadableFile", "p2: why"), objects=tuple(objects)
    )
    return Buffer(uri, properties, entry, put)


@pytest.fixture(params=["files", "s3"])
def buffer(request: pytest.FixtureRequest, tmp_path: Path) -> Buffer:
    if request.param == "files":

        def write(name: str, content: bytes) -> None:
            path = tmp_path / "buffer" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)

        return refused(f"file://{tmp_path}/buffer", {}, write)
    server: S3 = request.getfixturevalue("s3")
    bucket = server.bucket(f"lake-{uuid.uuid4().hex[:8]}")
    return refused(
        f"s3://{bucket}/buffer",
        server.properties(),
        lambda name, content: server.put(bucket, f"buffer/{name}", content),
    )


def check_gone(buffer: Buffer) -> None:
    """All of it is in the area, as it was; nothing is left where it was."""
    area = buffer.area()
    assert set(buffer.names()) == {f"{area}/day=1/p 1é", f"{area}/p2", f"{area}/_REFUSED.json"}
    assert buffer.names()[f"{area}/p2"][0] == 4


def test_a_refused_batch_is_moved_with_its_reason(buffer: Buffer) -> None:
    buffer.aside()

    check_gone(buffer)
    if buffer.uri.startswith("file://"):
        text = Path(buffer.uri.removeprefix("file://"), buffer.area(), "_REFUSED.json").read_text()
        assert (json.loads(text)["reason"], json.loads(text)["message"]) == ("UnreadableFile", "p2: why")


@pytest.mark.parametrize("step", STEPS)
def test_a_move_that_was_killed_is_finished_by_another_run(buffer: Buffer, step: str) -> None:
    with pytest.raises(Killed):
        buffer.aside(**{step.replace("-", "_"): die})
    complete = "batch_id=A/_SUCCESS" in buffer.names()
    assert complete == (step != "refused-unmarked")
    assert {"batch_id=A/p2", f"{buffer.area()}/p2"} <= buffer.names().keys()

    buffer.aside(judged=False)

    check_gone(buffer)
    buffer.aside(judged=False)
    check_gone(buffer)


def test_a_move_killed_between_two_objects_is_finished(buffer: Buffer) -> None:
    with pytest.raises(Killed):
        buffer.aside(refused_unmarked=die)
    open_store(buffer.uri, buffer.properties).delete_unchanged(buffer.entry.objects[0])

    buffer.aside(judged=False)

    check_gone(buffer)


def test_a_batch_that_its_producer_has_changed_stays_as_it_is(buffer: Buffer) -> None:
    buffer.put("batch_id=A/p2", b"mended")
    before = buffer.names()

    buffer.aside()

    assert buffer.names() == before


@pytest.mark.parametrize("step", STEPS)
def test_what_its_producer_changes_meanwhile_is_never_deleted(buffer: Buffer, step: str) -> None:
    """Each object goes only as the one that was judged, asked again at that moment."""
    buffer.aside(**{step.replace("-", "_"): lambda: buffer.put("batch_id=A/p2", b"mended")})

    assert buffer.names()["batch_id=A/p2"][0] == 6
    assert buffer.names()[f"{buffer.area()}/p2"][0] == 4


def test_what_its_producer_adds_meanwhile_is_never_deleted(buffer: Buffer) -> None:
    buffer.aside(refused_unmarked=lambda: buffer.put("batch_id=A/p3", b"new"))

    assert {k for k in buffer.names() if k.startswith("batch_id=A/")} == {"batch_id=A/p3"}


def test_the_same_bytes_put_again_after_the_refusal_wait_for_a_run(buffer: Buffer) -> None:
    """The table may have changed since, so that they fit now."""
    buffer.aside()
    again = replace(buffer, entry=replace(buffer.entry, time=datetime.now(UTC) - timedelta(hours=1)))
    for name, content in (("day=1/p 1é", b"good"), ("p2", b"bad!"), ("_SUCCESS", b"")):
        buffer.put(f"batch_id=A/{name}", content)

    again.aside(judged=False)

    assert {k for k in buffer.names() if k.startswith("batch_id=A/")} == {
        "batch_id=A/day=1/p 1é",
        "batch_id=A/p2",
        "batch_id=A/_SUCCESS",
    }


def test_a_batch_refused_again_with_other_objects_is_kept_in_addition_to_the_first(buffer: Buffer) -> None:
    buffer.aside()
    second = refused(buffer.uri, buffer.properties, lambda name, _: buffer.put(name, b"x" * len(name)))
    second = replace(
        second, entry=replace(second.entry, objects=tuple(o for o in second.entry.objects if "/_refused/" not in o.key))
    )

    second.aside()

    assert buffer.area() != second.area()
    assert {f"{buffer.area()}/p2", f"{second.area()}/p2"} <= buffer.names().keys()


# --- one file that was a batch --------------------------------------------------------------------------------------------


@pytest.fixture
def file(buffer: Buffer) -> Buffer:
    """The same buffer, with a refused batch of the layout File beside the folder."""
    buffer.put("A é.csv", b"bad!")
    buffer.put("A é.csv.gz", b"of another batch, as far as a listing by prefix goes")
    found = open_store(buffer.uri, buffer.properties).head(f"{buffer.uri}/A é.csv")
    assert found is not None
    return replace(buffer, entry=replace(buffer.entry, objects=(BufferedObject(found.key, found.size, found.etag),)))


@pytest.mark.parametrize("step", ["refused-copied", "refused-explained", "refused-unmarked", ""])
def test_a_refused_file_is_moved_with_its_reason_wherever_the_first_run_died(file: Buffer, step: str) -> None:
    before = file.names()
    if step:
        with pytest.raises(Killed):
            file.aside(**{step.replace("-", "_"): die})

    file.aside(judged=not step)

    moved = {f"{file.area()}/A é.csv", f"{file.area()}/_REFUSED.json"}
    assert set(file.names()) == before.keys() - {"A é.csv"} | moved
    assert file.names()[f"{file.area()}/A é.csv"][0] == 4


@pytest.mark.parametrize("step", STEPS)
def test_a_file_that_its_producer_writes_again_meanwhile_is_never_deleted(file: Buffer, step: str) -> None:
    file.aside(**{step.replace("-", "_"): lambda: file.put("A é.csv", b"mended")})

    assert file.names()["A é.csv"][0] == 6
    assert file.names()[f"{file.area()}/A é.csv"][0] == 4
