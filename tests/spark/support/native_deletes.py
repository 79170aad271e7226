"""A Dataset whose deleted batches are deleted natively as well, and readings of its table that know nothing of ledgers."""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import lethe
import lethe_spark
from lethe.contract.run import RunSpec
from lethe.contract.settings import Deletes
from lethe.iceberg.native_deletes import native_deletes
from lethe.ledger.tombstone import Mask
from pyiceberg.manifest import DataFileContent, ManifestContent

from tests.spark.support.story import Row, Story, of_arrow, of_spark


@dataclass(frozen=True)
class Native(Story):
    deletes: Deletes = Deletes.DELETION_VECTORS

    def filled(self, *groups: str) -> Self:
        """By default, batches A, B and D are in the same files, E is in separate files."""
        return super().filled(*(groups or ("ABD", "E")))

    def following(self) -> RunSpec:
        """The run that the operator starts for a head whose tombstones do not all have native deletes."""
        spec = self.consolidation()
        assert spec.consolidation is not None
        consolidation = spec.consolidation.model_copy(update={"deletes": Deletes(self.deletes)})
        return spec.model_copy(update={"consolidation": consolidation})

    def plain(self, snapshot_id: int | None = None) -> Counter[Row]:
        """The rows that Spark SQL finds, at the head or at a snapshot."""
        name = ".".join(f"`{part}`" for part in self.full_name.split("."))
        at = "" if snapshot_id is None else f" VERSION AS OF {snapshot_id}"
        return of_spark(self.spark.sql(f"SELECT * FROM {name}{at}"))

    def plain_at_each(self, snapshot_ids: Sequence[int]) -> dict[int, Counter[Row]]:
        """As `plain`, of several snapshots by one query."""
        name = ".".join(f"`{part}`" for part in self.full_name.split("."))
        queries = (f"SELECT {i}L AS at, batch_id, v, day FROM {name} VERSION AS OF {i}" for i in snapshot_ids)
        found: dict[int, Counter[Row]] = {i: Counter() for i in snapshot_ids}
        for r in self.spark.sql(" UNION ALL ".join(queries)).collect():
            found[r["at"]][(r["batch_id"], r["v"], r["day"])] += 1
        return found

    def check_native(self, wanted: Counter[Row], since: int | None = None) -> None:
        """Whoever knows nothing of ledgers finds the same rows as Lethe's readers, at the head and at each snapshot; and what
        came and went between two snapshots is the difference of their rows.

        Args:
            since: The oldest snapshot to look at; all of them by default.
        """
        self.spark.catalog.clearCache()
        assert self.plain() == wanted
        assert of_arrow(lethe.scan(self.full_name).to_arrow()) == wanted
        assert of_spark(lethe_spark.read(self.spark, self.full_name)) == wanted
        newest_first = [s.snapshot_id for s in self.snapshots()]
        if since is not None:
            newest_first = newest_first[: newest_first.index(since) + 1]
        rows = self.plain_at_each(newest_first)
        for i in newest_first:
            assert of_arrow(lethe.scan(self.full_name, snapshot_id=i).to_arrow()) == rows[i]
            assert of_arrow(self.table().scan(snapshot_id=i).to_arrow()) == rows[i]
        for later, earlier in pairwise(newest_first):
            self.check_range(earlier, later, rows)
        self.check_range(newest_first[-1], newest_first[0], rows, with_spark=True)

    def check_range(self, since: int, until: int, rows: dict[int, Counter[Row]], with_spark: bool = False) -> None:
        came, went = (of_arrow(lethe.scan(self.full_name, since=since, until=until, rows=r).to_arrow()) for r in _WHICH)
        assert rows[since] + came == rows[until] + went, (since, until)
        if with_spark:
            read = [lethe_spark.read(self.spark, self.full_name, since=since, until=until, rows=r) for r in _WHICH]
            assert [of_spark(frame) for frame in read] == [came, went]

    def deletes_now(self) -> list[tuple[DataFileContent, str, int]]:
        """The live delete files of the head: what they are, their path, how many rows they name."""
        return sorted(self._delete_files())

    def _delete_files(self) -> Iterator[tuple[DataFileContent, str, int]]:
        table = self.table()
        head = table.current_snapshot()
        assert head is not None
        for manifest in head.manifests(table.io):
            if manifest.content is ManifestContent.DELETES:
                for entry in manifest.fetch_manifest_entry(table.io):
                    yield entry.data_file.content, entry.data_file.file_path, entry.data_file.record_count

    def files_of_deletes(self) -> set[str]:
        """The data files that a delete file of the head names as the only one it applies to."""
        table = self.table()
        head = table.current_snapshot()
        assert head is not None
        return set(native_deletes(table.io, head.manifests(table.io)).of_file)

    def hidden_rows(self) -> int:
        """How many rows the deletes of the head name."""
        return sum(n for _, _, n in self.deletes_now())

    def masks(self) -> dict[str, Mask | None]:
        """Of the active tombstones, by batch id."""
        return {t.id: t.mask for t in self.ledger().tombstones.values()}


_WHICH = ("appended", "deleted")
