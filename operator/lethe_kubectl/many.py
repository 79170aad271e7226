"""Puts many batches at once, and reports what became of each. I/O."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, TypeVar

import click
from lethe.base.errors import InputError, LetheError, TransientError
from lethe.cli.output import print_document, progress

from lethe_kubectl.local_batches import LocalBatch

AT_ONCE: Final = 4
GROUP: Final = 32
"""Batches that a thread takes at once. Their small files share a decoder, whose start takes longer than reading them."""
EXIT_FAILED: Final = 1
AWAY_AT_MOST: Final = 10
"""Batches in a row that a store or the gateway did not take. Then it is away, and the other batches are not tried."""

T = TypeVar("T")


@dataclass(frozen=True)
class Outcome:
    """What became of a batch."""

    batch_id: str
    uri: str
    """Of its folder in the buffer, or of its only file; "": the gateway knows it."""
    files: int
    bytes: int
    rows: int | None
    """None: they were not read."""
    done: str
    """put or unchanged."""

    def to_document(self) -> dict[str, Any]:
        """For JSON and YAML."""
        place = {"uri": self.uri} if self.uri else {}
        what = {"files": self.files, "bytes": self.bytes, "rows": self.rows, "done": self.done}
        return {"batch": self.batch_id, **place, **what}

    def text(self) -> str:
        """How much it is."""
        rows = f", {self.rows} rows" if self.rows is not None else ""
        return f"{self.files} files, {self.bytes} bytes{rows}"


@dataclass
class ManyOutcomes:
    """What became of many batches. Threads add to it."""

    outcomes: list[Outcome] = field(default_factory=list)
    failures: dict[str, LetheError] = field(default_factory=dict)
    """By batch id."""
    untried: int = 0
    """Batches that were not begun, because the store was away or the command was interrupted."""
    is_interrupted: bool = False
    away: int = 0
    """Batches in a row for which the store or the gateway was away."""

    def attempt(self, batch_id: str, step: Callable[[], T | Outcome]) -> T | None:
        """Do something with a batch, unless the store is away or the command was interrupted.

        Returns:
            What the step returns; None: it is the outcome, or the batch has failed, or was not tried.
        """
        if self.is_interrupted or self.away >= AWAY_AT_MOST:
            return None
        try:
            found = step()
            self.away = 0
        except LetheError as e:
            self.failures[batch_id] = e
            self.away = self.away + 1 if isinstance(e, TransientError) else 0
            return None
        except OSError as e:
            self.failures[batch_id] = InputError("UnreadableFile", f"{e.filename}: {e.strerror}.")
            return None
        if not isinstance(found, Outcome):
            return found
        self.outcomes.append(found)
        return None

    def summary(self) -> str:
        """One line."""
        done = [o.done for o in self.outcomes]
        put = [o for o in self.outcomes if o.done == "put"]
        rows = [o.rows for o in put if o.rows is not None]
        parts = [f"{len(put)} batches put", f"{done.count('unchanged')} unchanged", f"{len(self.failures)} failed"]
        parts += [f"{self.untried} not tried"] if self.untried else []
        sizes = [f"{sum(o.files for o in put)} files", f"{sum(o.bytes for o in put)} bytes"]
        sizes += [f"{sum(rows)} rows"] if rows else []
        return f"{', '.join(parts)}: {', '.join(sizes)}"


def put_many(batches: Sequence[LocalBatch], put: Callable[[LocalBatch], Outcome], parallel: int) -> ManyOutcomes:
    """Put batches one by one, several at once. See `put_groups`."""

    def put_group(many: ManyOutcomes, group: Sequence[LocalBatch]) -> None:
        for batch in group:
            many.attempt(batch.batch_id, partial(put, batch))

    return put_groups(batches, put_group, parallel, size=1)


def put_groups(
    batches: Sequence[LocalBatch],
    put: Callable[[ManyOutcomes, Sequence[LocalBatch]], None],
    parallel: int,
    size: int = GROUP,
) -> ManyOutcomes:
    """Put groups of batches, several at once. A batch that fails does not stop the others.

    An interruption ends it after the batches that were begun.

    Args:
        put: Puts the batches of a group with `ManyOutcomes.attempt`.
        size: The batches of a group; fewer if there are too few for all threads.
    """
    many, size = ManyOutcomes(), max(1, min(size, len(batches) // parallel))
    groups = [batches[n : n + size] for n in range(0, len(batches), size)]
    with progress() as bar, ThreadPoolExecutor(parallel, thread_name_prefix="lethe-put") as pool:
        task = bar.add_task("batches", total=len(batches))
        try:
            futures = {pool.submit(put, many, group): len(group) for group in groups}
            for future in as_completed(futures):
                future.result()
                bar.advance(task, futures[future])
        except KeyboardInterrupt:
            many.is_interrupted = True
        finally:
            pool.shutdown(cancel_futures=True)
    many.untried = len(batches) - len(many.outcomes) - len(many.failures)
    return many


def finish(dataset: str, many: ManyOutcomes, dry_run: bool, output: str) -> None:
    """Print what became of the batches, and exit with 1 if some were not put."""
    outcomes, failures = sorted(many.outcomes, key=lambda o: o.batch_id), sorted(many.failures.items())
    match output:
        case "json" | "yaml":
            failed = [{"batch": i, "reason": e.reason, "message": e.message} for i, e in failures]
            document = {
                "dataset": dataset,
                "batches": [o.to_document() for o in outcomes],
                "failed": failed,
                "notTried": many.untried,
                "dryRun": dry_run,
            }
            print_document(document, output)
        case "name":
            click.echo("".join(f"{o.batch_id}\n" for o in outcomes), nl=False)
        case _:
            click.echo(f"dataset/{dataset}: {many.summary()}{' (dry run)' if dry_run else ''}")
    if output not in ("json", "yaml"):
        for batch_id, error in failures:
            click.echo(f"failed: {batch_id}: {error}", err=True)
    if many.untried:
        why = "it was interrupted" if many.is_interrupted else f"{AWAY_AT_MOST} batches in a row found the store away"
        click.echo(f"lethe: {many.untried} batches were not tried: {why}. Repeat the command to go on.", err=True)
    if failures or many.untried:
        sys.exit(EXIT_FAILED)
