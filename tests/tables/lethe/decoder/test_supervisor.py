"""Whatever becomes of decoders, each unit gets its result once, in order, and a unit that ends them is found."""

import os
import random
import signal
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from lethe.contract.settings import FileFormat
from lethe.decoder import process
from lethe.decoder.child import SEVERAL, ChildLink
from lethe.decoder.limits import Limits
from lethe.decoder.process import NoDecoder, Process, Unit, supervise
from lethe.ingest.buffer_files import Reader, ReadSettings
from lethe.ingest.buffer_store import FileTask

LIMITS = Limits(memory_bytes=256 * 1024**2, cpu_seconds=0.5, wall_factor=1)


@dataclass(frozen=True)
class Acting:
    """Returns the name of each unit in groups, and does what the unit says."""

    group: int = 3
    limits: Limits = LIMITS

    def run(self, link: ChildLink) -> None:
        names: list[tuple[int, str, str]] = []
        while True:
            document, _ = link.receive()
            for number, size, _, of in document["units"]:
                link.begin(number, size)
                act(of["act"])
                names.append((number, of["name"], of["act"]))
                if len(names) >= self.group:
                    names = sent(link, names)
                link.rest()
            if document["flush"]:
                names = sent(link, names)
            link.send({"kind": "ready"})


def act(what: str) -> None:
    match what:
        case "segmentation fault":
            os.kill(os.getpid(), signal.SIGSEGV)
        case "abort":
            os.abort()
        case "exit":
            os._exit(3)
        case "memory":
            _ = [bytearray(64 * 1024**2) for _ in range(8)]
        case "never end":
            while True:
                pass
        case "hang":
            time.sleep(3600)


def sent(link: ChildLink, names: list[tuple[int, str, str]]) -> list[Any]:
    """Send the names. Some end the decoder when they are sent with others, or at all."""
    if names:
        link.begin(SEVERAL if len(names) > 1 else names[0][0], 0)
        for _, _, what in names:
            act("abort" if what == "abort late" else "")
        link.rest()
        link.send({"kind": "result", "settled": [n for n, _, _ in names], "names": [n for _, n, _ in names]})
    return []


def unit(name: str, what: str = "") -> Unit:
    return Unit({"name": name, "act": what}, b"x", 1, name)


def supervised(units: Sequence[Unit], work: Acting = Acting()) -> tuple[list[str], dict[str, str]]:
    """The names with a result, and how the others end decoders."""
    refused: dict[str, str] = {}

    def refuse(of: Unit, why: str) -> None:
        refused[of.name] = why

    found = list(supervise(work, units, lambda document, _c, _u: document["names"], refuse))
    return found, refused


@pytest.mark.parametrize(
    ("what", "why"),
    [
        ("segmentation fault", "it ends the decoder (SIGSEGV)"),
        ("abort", "it ends the decoder (SIGABRT)"),
        ("abort late", "it ends the decoder (SIGABRT)"),
        ("exit", "it ends the decoder (exit code 3)"),
        ("memory", "decoding it takes more than 256 MiB of memory"),
        ("never end", "decoding its 1 bytes takes more than 1 s of processor time"),
        ("hang", "decoding its 1 bytes takes more than 1 s of processor time"),
    ],
)
def test_a_unit_that_ends_its_decoder_is_named_and_the_others_have_results(what: str, why: str) -> None:
    units = [unit(f"{n}", what if n == 4 else "") for n in range(10)]
    # Enough time for what ends for another cause, whatever else the machine does.
    limits = replace(LIMITS, cpu_seconds=1 if "time" in why else 60)

    found, refused = supervised(units, Acting(limits=limits))

    assert found == [f"{n}" for n in range(10) if n != 4]
    assert refused == {"4": why}


def test_every_unit_may_end_its_decoder() -> None:
    found, refused = supervised([unit(f"{n}", "abort") for n in range(5)])

    assert (found, list(refused)) == ([], [f"{n}" for n in range(5)])


def test_of_a_unit_that_ends_its_decoder_the_parts_are_decoded_in_its_place() -> None:
    """A part that ends a decoder, too, is divided again, until it is found."""
    refused: list[str] = []

    def of(names: str) -> Unit:
        return unit(names, "abort" if "x" in names else "")

    def halves(whole: Unit) -> Sequence[Unit]:
        names = whole.document["name"]
        half = len(names) // 2
        return [of(names[:half]), of(names[half:])] if half else ()

    units = [of("ab"), of("cdexf"), of("g")]
    found = list(supervise(Acting(), units, lambda d, _c, _u: d["names"], lambda u, _: refused.append(u.name), halves))

    assert (found, refused) == (["ab", "cd", "e", "f", "g"], ["x"])


def test_no_unit_needs_no_decoder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Process, "__init__", None)

    assert supervised([]) == ([], {})


@pytest.mark.parametrize("seed", range(12))
def test_decoders_that_are_killed_at_any_moment_lose_and_repeat_nothing(seed: int) -> None:
    chance = random.Random(seed)
    group, count = chance.randrange(1, 8), chance.randrange(41)
    original = Process.receive

    def receive(self: Process, *args: Any) -> Any:
        if chance.random() < 0.2:
            with suppress(ProcessLookupError):  # killed earlier, but it had sent something before
                os.kill(self._pid, signal.SIGKILL)
        return original(self, *args)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "receive", receive)
        patch.setattr("lethe.decoder.process._IDLE_DEATHS_AT_MOST", 1000)
        found, refused = supervised([unit(f"{n}") for n in range(count)], Acting(group))

    assert found == [f"{n}" for n in range(count) if f"{n}" not in refused]
    assert all("SIGKILL" in why for why in refused.values())


def test_a_decoder_that_ends_before_it_begins_is_no_fault_of_a_unit(monkeypatch: pytest.MonkeyPatch) -> None:
    original = Process.send

    def send(self: Process, *args: Any) -> None:
        os.kill(self._pid, signal.SIGKILL)
        original(self, *args)

    monkeypatch.setattr(Process, "send", send)

    with pytest.raises(NoDecoder, match="before it decodes any"):
        supervised([unit("0")])


def test_a_server_that_was_killed_is_started_again() -> None:
    assert supervised([unit("0")]) == (["0"], {})
    program = process._Server._program
    assert program is not None
    program.kill()
    program.wait()

    assert supervised([unit("0")]) == (["0"], {})


def test_an_error_of_the_decoder_itself_is_raised_without_values() -> None:
    with pytest.raises(NoDecoder, match=r"failed \(KeyError at .*test_supervisor.py"):
        supervised([Unit({"name": "0"}, b"x", 1, "0")])


@pytest.mark.parametrize("impatient", [False, True])
def test_no_decoder_is_left_when_its_parent_stops_early(impatient: bool) -> None:
    """Either the results are not asked for any more, or who waits for one that takes long gives up."""
    pids: list[int] = []
    got: list[str] = []
    original = Process.__init__

    def begin(self: Process, work: Any) -> None:
        original(self, work)
        pids.append(self._pid)

    def give_up(_: float) -> None:
        if got:
            raise Impatient

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Process, "__init__", begin)
        units = [unit("0"), unit("1", "hang")]
        results = supervise(Acting(1), units, lambda d, _c, _u: d["names"], lambda *_: (), give_up)
        got.append(next(results))
        if impatient:
            with pytest.raises(Impatient):
                next(results)
        else:
            results.close()  # type: ignore[attr-defined]

    assert got == ["0"]
    until = time.monotonic() + 20
    while os.path.exists(f"/proc/{pids[0]}") and time.monotonic() < until:
        time.sleep(0.01)
    assert not os.path.exists(f"/proc/{pids[0]}")


class Impatient(Exception):
    pass


def test_a_decoder_has_no_credentials_no_core_and_no_output() -> None:
    found = list(supervise(Looking(), [unit("0")], lambda d, _c, _u: [d], lambda *_: ()))

    assert found[0]["environ"] == {}
    assert found[0]["core"] == [0, 0]
    assert found[0]["output"] == [os.devnull] * 3


@dataclass(frozen=True)
class Looking:
    limits: Limits = LIMITS

    def run(self, link: ChildLink) -> None:
        import resource

        while True:
            document, _ = link.receive()
            numbers = [u[0] for u in document["units"]]
            if numbers:
                look = {
                    "environ": dict(os.environ),
                    "core": resource.getrlimit(resource.RLIMIT_CORE),
                    "output": [os.readlink(f"/proc/self/fd/{n}") for n in range(3)],
                }
                link.send({"kind": "result", "settled": numbers, **look})
            link.send({"kind": "ready"})


def test_the_server_has_no_threads_when_it_forks_decoders(tmp_path: Path) -> None:
    """A fork of a process with threads may wait forever for a lock of one of them. What the server decodes itself starts none."""
    file = tmp_path / "file"
    file.write_bytes(b"v\n1\n")
    reader = Reader(pa.schema([("v", pa.int64()), ("batch", pa.string())]), ReadSettings("batch", {}, FileFormat.CSV))

    (rows,) = reader.tables([FileTask("A", f"file://{file}", 4)], {})

    assert rows.column("v").to_pylist() == [1]
    server = process._Server._program
    assert server is not None
    names = [path.read_text().strip() for path in Path(f"/proc/{server.pid}/task").glob("*/comm")]
    assert len([n for n in names if n != "jemalloc_bg_thd"]) == 1  # pyarrow starts that one, and forks it correctly
