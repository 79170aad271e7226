"""Writes docs/first-day.md: ten tasks of a first day with Lethe, as a terminal of 80 columns shows them.

Run `make dist && python docs/record_first_day.py` after a change of what these commands print. Everything runs: the
installation in a new environment of Python, `lethe local up` beside the commands, and each command in a terminal of its own. It
takes some minutes, and needs the packages from an index. A test runs all tasks but the first.
"""

import fcntl
import os
import pty
import re
import shutil
import signal
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs/first-day.md"
SHOWN_HOME = "/home/ada"
NEWCOMER = {
    "GIT_AUTHOR_NAME": "Ada",
    "GIT_AUTHOR_EMAIL": "ada@example.com",
    "GIT_COMMITTER_NAME": "Ada",
    "GIT_COMMITTER_EMAIL": "ada@example.com",
    "GIT_PAGER": "cat",
    "PIP_DISABLE_PIP_VERSION_CHECK": "1",
}
COLUMNS, LINES = 80, 40
LOOK_SECONDS = 5
"""Between two looks at something that takes a while."""
TIMEOUT_SECONDS = 600
ESCAPES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]|\x1b\][^\x07]*\x07")


@dataclass(frozen=True)
class Step:
    """A command."""

    command: str
    until: str = ""
    """It is repeated until its output contains this pattern."""
    code: int = 0
    """How it ends."""
    shown: int = 40
    """The largest number of lines on the page."""
    is_server: bool = False
    """It stays up beside the next ones, once its output contains `until`."""


@dataclass(frozen=True)
class File:
    """A file that the newcomer writes. `{home}` in it is the home folder."""

    name: str
    text: str


@dataclass(frozen=True)
class Task:
    """Something that a newcomer wants to do."""

    title: str
    where: str
    """The pages that say how, in Markdown."""
    steps: tuple[Step | File, ...]


@dataclass(frozen=True)
class Recorded:
    """A command and what it printed, or a file."""

    step: Step | File
    output: str = ""


HEAD = """<!-- Made by docs/record_first_day.py: it runs these commands, and writes what a terminal of 80 columns shows. -->

# A first day

Ten tasks on one machine with two cores, without a cluster: the commands in their order, and what they print. `lethe local up`
stays up in a terminal of its own. Times and names differ on your machine. `…` stands for more lines.
Some commands were repeated until they showed the end.
"""
ORDERS = """apiVersion: lethe.dev/v1beta1
kind: Dataset
metadata:
  name: orders
spec:
  table:
    catalog: local
    name: shop.orders
    create:
      schema: id BIGINT, item STRING, price DOUBLE, day STRING
  batchColumn: day
  buffer:
    uri: file://{home}/buffer
    format: csv
  consolidation:
    minBatches: 1
  snapshots:
    maxAgeSeconds: 0
    minToKeep: 1
"""
LOOK = """import lethe

orders = lethe.table("orders")
print(orders.scan(filter="price > 4").to_pandas())
print(orders.batches().to_pandas()[["batch_id", "state", "rows"]])
"""

TASKS = (
    Task(
        "Install",
        "[The README](../README.md#what-to-look-at-next), [the quickstart](quickstart.md#start). `make dist` has built the wheel",
        (
            Step("python3 -m venv lethe && . lethe/bin/activate"),
            Step('pip install -q "lethe-lake[local,java,notebook] @ file://$(ls $PWD/*.whl)"'),
            Step("lethe local up", until="next .*yaml", is_server=True),
        ),
    ),
    Task(
        "Deliver a batch",
        "[The quickstart](quickstart.md#a-dataset)",
        (
            File("orders.yaml", ORDERS),
            Step("lethe local apply -f orders.yaml"),
            Step("mkdir monday tuesday"),
            Step(r"printf 'id,item,price\n1,tea,4.5\n2,cake,3.0\n' > monday/orders.csv"),
            Step(r"printf 'id,item,price\n3,tea,4.5\n4,scone,-1\n' > tuesday/orders.csv"),
            Step("lethe put orders ./monday ./tuesday"),
            Step("lethe status", until=r"Available +2 "),
            Step("lethe batches orders"),
        ),
    ),
    Task(
        "Look at the table",
        "[The quickstart](quickstart.md#deliver-a-batch)",
        (Step("lethe read orders"), Step('lethe read orders --filter "price > 4" --columns item,day')),
    ),
    Task(
        "Take a batch back",
        "[The quickstart](quickstart.md#take-it-back)",
        (
            Step('lethe revert orders tuesday --name bad-price --reason "negative price" --wait'),
            Step("lethe read orders"),
        ),
    ),
    Task(
        "Undo that",
        "[The quickstart](quickstart.md#take-it-back)",
        (
            Step("lethe undo bad-price --wait"),
            Step("lethe read orders"),
            Step("lethe history orders tuesday"),
        ),
    ),
    Task(
        "Erase a batch, and prove it",
        "[The quickstart](quickstart.md#erase-it), [erasure](erasure.md)",
        (
            Step('lethe erase orders tuesday --reason "names in the items" --ticket PRIVACY-7 --wait=hidden'),
            Step("lethe vacuum-now orders --wait"),
            Step("lethe erasures list orders", until="verified"),
            Step("lethe erasures verify orders --storage"),
        ),
    ),
    Task(
        "Find out why nothing happens",
        "[Troubleshooting](troubleshooting.md)",
        (
            Step("mkdir buffer/day=wednesday"),
            Step(r"printf 'id,item,price\n5,tea,4.6\n' > buffer/day=wednesday/orders.csv"),
            Step("lethe why orders", until="_SUCCESS"),
            Step("touch buffer/day=wednesday/_SUCCESS"),
            Step("lethe batches orders --state promoted", until="wednesday +promoted"),
        ),
    ),
    Task(
        "Read in a notebook",
        "[Reading](reading.md), [in a notebook](notebooks/reading.ipynb). The cells of the notebook are in a file here",
        (File("cells.py", LOOK), Step("python cells.py")),
    ),
    Task(
        "Deliver 5,000 batches",
        "[Many batches](many-batches.md)",
        (
            Step("mkdir loads; for n in $(seq -w 5000); do mkdir loads/load-$n; done"),
            Step(r'for n in $(seq -w 5000); do printf "id,item,price\n$n,tea,5\n" > loads/load-$n/a.csv; done'),
            Step("lethe put orders ./loads --each"),
            Step("lethe status", until=r"Available +500[2-9] "),
            Step("lethe batches orders --state promoted -o name | wc -l"),
        ),
    ),
    Task(
        "Plan a change in Git",
        "[What an apply would change](plan.md)",
        (
            Step("git init -q lake && cp orders.yaml lake && cd lake && git add . && git commit -qm Orders"),
            Step("sed -i 's/minBatches: 1/minBatches: 10/' orders.yaml && git diff -U0"),
            Step("lethe plan -f ."),
            Step("lethe revert orders --batches 'load-00*' --name too-early -o yaml > too-early.yaml", shown=5),
            Step("lethe plan -f ."),
        ),
    ),
)


@dataclass
class Terminal:
    """Runs commands one by one. Folder and variables stay, as in one shell."""

    home: Path
    environ: Mapping[str, str]
    servers: list["subprocess.Popen[bytes]"] = field(default_factory=list)

    def record(self, step: Step | File) -> Recorded:
        """Run a command until it prints what is awaited, or write a file.

        Raises:
            AssertionError: It ends in another way.
        """
        if isinstance(step, File):
            (self.home / step.name).parent.mkdir(exist_ok=True)
            (self.home / step.name).write_text(step.text.format(home=self.home))
            return Recorded(step)
        ends = time.monotonic() + TIMEOUT_SECONDS
        while True:
            output, code = self._served(step) if step.is_server else self._run(step.command)
            if code == step.code and re.search(step.until, output):
                return Recorded(step, output)
            again = step.until and code == step.code and time.monotonic() < ends
            assert again, f"{step.command}\nended with {code}:\n{output}"
            time.sleep(LOOK_SECONDS)

    def _run(self, command: str) -> tuple[str, int]:
        """What the command prints, and its exit code."""
        process, terminal = self._start(command)
        try:
            return self._printed(terminal), process.wait(TIMEOUT_SECONDS)
        finally:
            os.close(terminal)

    def _served(self, step: Step) -> tuple[str, int]:
        """What a command that goes on prints first."""
        process, terminal = self._start(f"exec {step.command}")
        self.servers.append(process)
        output, ends = "", time.monotonic() + TIMEOUT_SECONDS
        with suppress(OSError):  # it has ended
            while not re.search(step.until, output) and time.monotonic() < ends:
                output += self._text(os.read(terminal, 65536))
        threading.Thread(target=self._printed, args=(terminal,), daemon=True).start()
        return output.rstrip(), process.poll() or 0

    def _start(self, command: str) -> tuple["subprocess.Popen[bytes]", int]:
        state = self.home / ".shell"
        script = (
            f'. {state}; cd "$FOLDER"\n{command}\ncode=$?; FOLDER=$PWD; export FOLDER; export -p > {state}; exit $code'
        )
        if not state.exists():
            state.write_text(f"export FOLDER={self.home}\n")
        terminal, inside = pty.openpty()
        fcntl.ioctl(inside, termios.TIOCSWINSZ, struct.pack("HHHH", LINES, COLUMNS, 0, 0))
        process = subprocess.Popen(
            ["bash", "-c", script],
            env={**self.environ, "COLUMNS": str(COLUMNS), "TERM": "dumb", "NO_COLOR": "1"},
            stdin=subprocess.DEVNULL,
            stdout=inside,
            stderr=inside,
        )
        os.close(inside)
        return process, terminal

    def _printed(self, terminal: int) -> str:
        """Everything until the last process has closed the terminal."""
        pieces = []
        try:
            while piece := os.read(terminal, 65536):
                pieces.append(piece)
        except OSError:  # a terminal that nobody writes to any more cannot be read
            pass
        return self._text(b"".join(pieces)).rstrip()

    def _text(self, printed: bytes) -> str:
        text = ESCAPES.sub("", printed.decode(errors="replace")).replace("\r\n", "\n")
        lines = (line.rpartition("\r")[2].rstrip() for line in text.replace(str(self.home), SHOWN_HOME).split("\n"))
        return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).lstrip("\n")

    def stop(self) -> None:
        """End what is still up."""
        for server in self.servers:
            server.send_signal(signal.SIGINT)
            server.wait(60)


@contextmanager
def terminal_in(home: Path, programs: Sequence[Path] = ()) -> Iterator[Terminal]:
    """A terminal with a new home.

    Args:
        programs: Folders that come first in PATH.
    """
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("LETHE_LOCAL", "PYICEBERG", "KUBECONFIG"))}
    path = os.pathsep.join([*map(str, programs), os.environ["PATH"]])
    terminal = Terminal(home, {**kept, **NEWCOMER, "HOME": str(home), "PATH": path})
    try:
        yield terminal
    finally:
        terminal.stop()


def section(number: int, task: Task, recorded: Sequence[Recorded]) -> str:
    """The commands of a task and what they printed, as Markdown."""
    return "\n\n".join([f"## {number}. {task.title}", f"{task.where}.", *blocks(recorded)])


def blocks(recorded: Sequence[Recorded]) -> Iterator[str]:
    """A block for each file, and one for the commands between two files."""
    lines: list[str] = []
    for one in recorded:
        if isinstance(one.step, File):
            yield from [console(lines)] if lines else []
            lines = []
            kind = one.step.name.rpartition(".")[2].replace("py", "python")
            content = one.step.text.format(home=SHOWN_HOME)
            yield f'```{kind} title="{one.step.name}"\n{content}```'
            continue
        printed = one.output.splitlines()
        shown = [*printed[: one.step.shown - 1], "…"] if len(printed) > one.step.shown else printed
        lines += [f"$ {one.step.command}", *shown]
    yield from [console(lines)] if lines else []


def console(lines: Sequence[str]) -> str:
    return "\n".join(["```console", *lines, "```"])


def page(tasks: Sequence[Task], recorded: Sequence[Sequence[Recorded]]) -> str:
    """The whole page."""
    sections = [section(n, task, of) for n, (task, of) in enumerate(zip(tasks, recorded, strict=True), 1)]
    return "\n\n".join([HEAD.rstrip(), *sections]) + "\n"


def main() -> None:
    (wheel,) = (ROOT / "dist").glob("lethe_lake-*.whl")
    os.environ.pop("PYTHONPATH", None)  # the wheel counts
    with tempfile.TemporaryDirectory(prefix="ada-") as name, terminal_in(Path(name)) as terminal:
        shutil.copy(wheel, terminal.home)
        recorded = []
        for task in TASKS:
            print(task.title, file=sys.stderr, flush=True)
            recorded.append([terminal.record(step) for step in task.steps])
    PAGE.write_text(page(TASKS, recorded))


if __name__ == "__main__":
    main()
