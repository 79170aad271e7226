"""`lethe local` in trouble: no write access, a full disk, a clock that jumps, data that does not fit, a lost table."""

import os
import socket
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from tests.cluster.kube import condition
from tests.local.cluster import LocalCluster
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


@pytest.mark.long
def test_a_csv_that_does_not_fit_is_named_with_its_column(lake: Lake) -> None:
    buffer = lake.home.parent / "csv"
    folder = buffer / "batch_id=bad"
    folder.mkdir(parents=True)
    (folder / "part-0.csv").write_text("id\n1\nmany\n")
    (folder / "_SUCCESS").touch()
    body = orders(buffer, "csv")
    body["spec"]["buffer"]["format"] = "csv"
    lake.apply(body)

    def refused() -> list[dict[str, str]]:
        return list(((lake.get("dataset", "csv").get("status") or {}).get("batches") or {}).get("refusedBatches") or ())

    wait_until(lambda: bool(refused()), LIMIT_SECONDS)

    (batch,) = refused()
    assert batch["batchId"] == "bad"
    assert "part-0.csv" in batch["message"]
    assert "id" in batch["message"]


def test_a_run_that_fails_shows_the_last_lines_of_its_log(lake: Lake) -> None:
    """It is the warm driver's part about this run."""
    name = "shared"
    buffer = lake.home.parent / name
    replace(lake, buffer=buffer).put("monday", 1, 2)
    lake.apply(orders(buffer, name))
    LocalCluster(lake.home / "kubeconfig").wait_for(
        f"datasets/{name}",
        lambda b: (b.get("status") or {}).get("batches", {}).get("promoted") == 1,
        within_seconds=LIMIT_SECONDS,
    )
    folder = lake.home.parent / f"{name}-replacement"
    folder.mkdir()
    (folder / "part-0.parquet").write_bytes(b"PAR1 this is no Parquet file PAR1")
    (folder / "_SUCCESS").touch()

    failed = lake.lethe("replay", name, "monday", "--with", "monday.2", "--uri", f"file://{folder}", "--wait")

    lines = failed.stderr.splitlines()
    first = next((i for i, line in enumerate(lines) if line.startswith("the last lines of run ")), -1)
    assert first >= 0, failed.stderr
    run = lines[first].removeprefix("the last lines of run ").rstrip(":")
    assert failed.returncode == 1
    assert any("UnreadableFile" in line for line in lines[first + 1 : -1]), failed.stderr
    assert lines[-1].startswith("next: lethe why restatement/")
    assert "UnreadableFile" in lake.lethe("logs", run).stdout
    assert "UnreadableFile" in lake.run("logs", run).stdout


@pytest.mark.long
def test_a_table_that_another_tool_dropped_is_named_and_not_created_again(lake: Lake) -> None:
    name = "dropped"
    its = replace(lake, buffer=lake.home.parent / name)
    its.put("monday", 1)
    lake.apply(orders(its.buffer, name))
    lake.wait_until("promoted", lambda: lake.promoted(1, name))
    lake.catalog().drop_table(f"shop.{name}")

    its.put("tuesday", 2)
    cluster = LocalCluster(lake.home / "kubeconfig")
    body = cluster.wait_for_condition(
        f"datasets/{name}", "Stalled", reason="TableDropped", within_seconds=LIMIT_SECONDS
    )

    assert f"shop.{name}" in condition(body, "Ready")["message"]
    assert not lake.catalog().table_exists(f"shop.{name}")
    why = lake.lethe("why", f"dataset/{name}")
    assert "accept-head" in why.stdout


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
