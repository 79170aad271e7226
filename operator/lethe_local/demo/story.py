"""The steps of the demo: each one applies a manifest, waits, and compares every number with that of pandas. I/O."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import pandas as pd
from lethe_operator.kube import Kube

from lethe_local.cli.client import kind_of
from lethe_local.cli.documents import documents
from lethe_local.cli.main import apply_document
from lethe_local.demo.console import Console
from lethe_local.demo.flights import BATCH_COLUMN, batches, corrected, correction, flights, rows_of, summary
from lethe_local.demo.lake import TABLE, DemoLake
from lethe_local.demo.narrate import Object, Step, World, check, fail, promoted, say, succeeded
from lethe_local.folder import NAMESPACE

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
    serve_gateway: Callable[[], str]  # starts the gateway, and returns its address
    rows: int = 0  # that a reader should see now

    def tell(self) -> None:
        self.fill_buffer()
        self.consolidate()
        self.revert()
        self.replay()
        self.erase()
        self.vacuum()
        self.console()

    def fill_buffer(self) -> None:
        wanted = flights()[BATCH_COLUMN].nunique()
        step = self._step("A producer writes a year of flights into the buffer, one folder for each day and carrier")
        done = 0
        for done in self.lake.put_batches(batches()):
            step.live(f"{done:,} of {wanted:,} batches")
        check("complete batches in the buffer", wanted, done)
        step.done(f"{done:,} batches with {len(flights()):,} rows wait")

    def consolidate(self) -> None:
        wanted = flights()[BATCH_COLUMN].nunique()
        step = self._apply("dataset", "Lethe creates the table and moves the batches into it")
        step.wait("all batches to be promoted", lambda world: promoted(world.dataset) >= wanted)
        step.done(f"{wanted:,} batches are now {len(self.lake.data_files())} data files")
        self._count(len(flights()))

    def revert(self) -> None:
        step = self._apply("restatement-revert", f"take {len(REVERTED)} batches back")
        result = self._result(step, "revert-blizzard")
        check("tombstones added", len(REVERTED), result["tombstonesAdded"])
        check("rows deleted", rows_of(REVERTED), result["rowsDeleted"])
        step.done(
            f"{result['rowsDeleted']} rows hidden by {result['tombstonesAdded']} tombstones; no data file changed"
        )
        self._count(self.rows - rows_of(REVERTED))

    def replay(self) -> None:
        batch = corrected(REPLACED, REPLACEMENT)
        self.lake.put_batch(self.lake.restated / REPLACEMENT, batch)
        step = self._apply("restatement-replay", f"{REPLACEMENT} replaces {REPLACED}, in one commit")
        result = self._result(step, "replay-new-year")
        check("rows deleted", rows_of([REPLACED]), result["rowsDeleted"])
        check("rows added", batch.rows, result["rowsAdded"])
        step.done(f"{result['rowsDeleted']} rows replaced by {result['rowsAdded']}")
        self._count(self.rows - rows_of([REPLACED]) + batch.rows)

    def erase(self) -> None:
        step = self._apply("restatement-erase", f"{ERASED} has to leave the storage, and Lethe has to verify it")
        result = self._result(step, "erase-passengers")
        check("rows deleted", rows_of([ERASED]), result["rowsDeleted"])
        step.done(f"{result['rowsDeleted']} rows hidden; their bytes are in the data files until a vacuum")
        self._count(self.rows - rows_of([ERASED]))
        self._check_contents()

    def vacuum(self) -> None:
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
        found = {}
        for kind in KINDS:
            for one in self.kube.list(kind_of(kind).resource, NAMESPACE):
                found[kind, one["metadata"]["name"]] = one.get("status") or {}
        return World(found)

    def _step(self, title: str) -> Step:
        return Step(title, self.look)

    def _apply(self, name: str, effect: str) -> Step:
        step = self._step(f"lethe local apply -f {name}.yaml: {effect}")
        for _, document in documents((self.lake.manifests / f"{name}.yaml",)):
            apply_document(self.kube, kind_of(document["kind"]), document)
        return step

    def _result(self, step: Step, name: str) -> Object:
        world = step.wait("the commit", lambda world: succeeded(world.restatement(name)))
        result: Object = world.restatement(name)["result"]
        return result

    def _count(self, wanted: int) -> None:
        """The row count of the SDK. It must equal that of pandas."""
        found = self.lake.count()
        check("rows of lethe.scan", wanted, found)
        earlier = f" (before: {self.rows:,})" if self.rows else ""
        say(f"    lethe.scan reads {found:,} rows{earlier}, the same as pandas")
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
