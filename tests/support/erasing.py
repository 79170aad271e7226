"""A Dataset with an Erase that was carried out and is not verified yet."""

from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from lethe.contract.result import ErasureOutcome
from lethe.kube import RESTATEMENTS
from lethe.ledger.tombstone import Erasure
from lethe_operator.resources.restatement import parse_restatement

from tests.support.builders import NOW, a_request_entry
from tests.support.resources import a_restatement_body, condition
from tests.support.small_lake import SmallLake
from tests.support.tables import commit_delta

SPEC: dict[str, Any] = {"operation": "Erase", "batchIds": ["A"]}
KEY = parse_restatement(a_restatement_body("erase", **SPEC)).key
ASKED = a_request_entry(KEY, operation="Erase", batch_ids=("A",))
OPEN = Erasure(KEY, 2, None)


class ErasingLake(SmallLake):
    """With an empty table, and the Restatement `erase`."""

    @classmethod
    def make(cls, home: Path, **spec: Any) -> Self:
        """PYICEBERG_HOME has to be `home`."""
        made = super().make(home)
        made.create_table()
        commit_delta(made.table, set_requests=(ASKED,), set_erasures=(OPEN,))
        made.ask("erase", **SPEC, **spec)
        return made

    def verified(self, record: str = "s3://r.json", sha256: str = "ab") -> None:
        """What a run commits that has verified the erasure."""
        outcome = ErasureOutcome(restatement=KEY, verified_time=NOW, record=record, record_sha256=sha256)
        told = outcome.model_dump(mode="json", by_alias=True, exclude_none=True)
        closed = replace(ASKED, result={**ASKED.result, "erasure": told})
        commit_delta(self.table, set_requests=(closed,), close_erasures=frozenset({KEY}))

    def create_again(self, **spec: Any) -> None:
        """As GitOps does after its time to live."""
        self.cluster.delete(RESTATEMENTS, "ns", "erase")
        self.ask("erase", **SPEC, **spec)

    def erase_status(self) -> dict[str, Any]:
        return dict(self.cluster.get(RESTATEMENTS, "ns", "erase").get("status") or {})

    def erased(self) -> tuple[str, str]:
        return condition(self.erase_status(), "Erased")
