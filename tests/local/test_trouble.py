"""`lethe local` in trouble: no write access, a full disk, a clock that jumps, data that does not fit, a lost table."""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.local.lake import Lake, a_lake, orders, restatement
from tests.support.clock import wait_until

LIMIT_SECONDS = 180
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system")


def mount(folder: Path, options: str) -> None:
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], check=True)


def unmount(folder: Path) -> None:
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@needs_root
def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    mount(tmp_path / "read-only", "ro")
    try:
        refused = a_lake(tmp_path / "read-only").run("up")
    finally:
        unmount(tmp_path / "read-only")

    assert refused.returncode == 10
    assert "FolderNotWritable" in refused.stderr
    assert f"{tmp_path}/read-only/lethe: Read-only file system" in refused.stderr
    assert "--dir" in refused.stderr


def test_a_port_of_the_gateway_that_is_taken_is_named_with_the_option(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        refused = a_lake(tmp_path).run("up", "--gateway", "--gateway-port", port)

    assert refused.returncode == 20
    assert f"PortTaken: port {port} of 127.0.0.1 cannot be opened: Address already in use" in refused.stderr
    assert "--gateway-port" in refused.stderr
    assert "console" not in refused.stdout


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Lake]:
    """A running `lethe local` with a disk of its own of 100 MB. Its buffer is elsewhere."""
    mount(tmp_path / "disk", "size=100m")
    lake = a_lake(tmp_path / "disk")
    lake.buffer = tmp_path / "buffer"
    lake.manifest = tmp_path / "apply.yaml"
    try:
        lake.up()
        yield lake
        lake.stop()
    finally:
        unmount(tmp_path / "disk")


@needs_root
@pytest.mark.long
def test_when_a_full_disk_has_space_again_the_work_goes_on(small_disk: Lake) -> None:
    lake = small_disk
    lake.put("monday", 1, 2)
    lake.apply(orders(lake.buffer))
    lake.wait_until("promoted", lambda: lake.promoted(1))
    filler = lake.home / "filler"
    subprocess.run(["dd", "if=/dev/zero", f"of={filler}", "bs=64k"], check=False, capture_output=True)
    assert os.statvfs(lake.home).f_bavail == 0

    lake.put("tuesday", 3)
    refused = lake.run("apply", "-f", str(lake.manifest))  # the state cannot take what has changed
    reverted = lake.lethe("revert", "orders", "monday", "--name", "no-space")

    assert reverted.returncode != 0
    assert "disk" in reverted.stderr + refused.stderr
    assert "Traceback" not in reverted.stderr + refused.stderr
    assert lake.ids() == [1, 2]
    filler.unlink()
    wait_until(lambda: lake.ids() == [1, 2, 3], LIMIT_SECONDS)
    lake.wait_until("promoted", lambda: lake.promoted(2))
    assert lake.process is not None
    assert lake.process.poll() is None


@dataclass
class WallClock:
    """The wall clock of processes, which a test shifts while they run."""

    library: Path
    offset: Path

    @property
    def environ(self) -> dict[str, str]:
        return {"LD_PRELOAD": str(self.library), "CLOCK_OFFSET_FILE": str(self.offset)}

    def shift(self, seconds: int) -> None:
        with self.offset.open("r+b") as file:  # in place: the processes have mapped it
            file.write(struct.pack("q", seconds))


@pytest.fixture
def clock(tmp_path: Path) -> WallClock:
    source = Path(__file__).parents[1] / "support/clock_offset.c"
    library, offset = tmp_path / "clock_offset.so", tmp_path / "offset"
    subprocess.run(["cc", "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", library, source], check=True)
    offset.write_bytes(struct.pack("q", 0))
    return WallClock(library, offset)


@pytest.fixture
def shifted(tmp_path: Path, clock: WallClock) -> Iterator[Lake]:
    """With two promoted batches. All processes have the clock."""
    lake = a_lake(tmp_path)
    lake.environ |= clock.environ
    lake.up()
    lake.put("monday", 1)
    lake.put("tuesday", 2)
    lake.apply(orders(lake.buffer))
    lake.wait_until("promoted", lambda: lake.promoted(2))
    yield lake
    lake.stop()


@pytest.mark.long
def test_when_the_clock_jumps_ahead_the_work_goes_on(shifted: Lake, clock: WallClock) -> None:
    clock.shift(2 * 86_400)
    shifted.put("wednesday", 3)
    shifted.apply(restatement("after", "Revert", batchIds=["tuesday"]))

    shifted.done("wait", "restatement", "after", "--for", "Succeeded")
    wait_until(lambda: shifted.ids() == [1, 3], LIMIT_SECONDS)


@pytest.mark.long
def test_a_clock_that_jumped_back_is_named_and_the_work_goes_on_when_it_is_right(
    shifted: Lake, clock: WallClock
) -> None:
    """Iceberg refuses commits that are older than the last one."""
    clock.shift(-7200)
    shifted.apply(restatement("after", "Revert", batchIds=["tuesday"]))

    def message() -> str:
        status = shifted.get("restatement", "after").get("status") or {}
        return " ".join(str(c.get("message")) for c in status.get("conditions") or ())

    wait_until(lambda: "Compare the clocks" in message(), LIMIT_SECONDS)
    assert shifted.ids() == [1, 2]
    clock.shift(0)

    shifted.done("wait", "restatement", "after", "--for", "Succeeded")
    assert shifted.ids() == [1]
