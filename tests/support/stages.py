"""Resources in every stage and with every end that they can have, as they are once the operator has looked at them; and what
those take them for that wait for resources."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from lethe.contract.result import AffectedFiles, Phase, Progress, RequestResult
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import Attempt, AttemptState, NoTable, ObservedRun, Unavailable
from lethe_operator.resources.restatement import Restatement, Unmet
from lethe_operator.resources.vacuum_policy import VacuumPolicy
from lethe_operator.vacuum.status import own

from tests.support.builders import NOW, a_ledger, a_request_entry, a_tombstone
from tests.support.documents import read_yaml
from tests.support.resources import (
    SETTINGS,
    a_consolidation,
    a_dataset,
    a_policy,
    a_replay,
    a_restatement,
    a_restatement_run,
    a_result,
    a_run,
    a_table,
    a_world,
    an_attempt,
)
from tests.support.statuses import decide, document, showing, without_dataset

CRDS = Path(__file__).parents[2] / "crds"
AWAY = Unavailable("CatalogUnavailable", "The catalog is away.")
BEGUN = Progress(run_id="x", phase=Phase.WRITING, updated_time=NOW)


@dataclass(frozen=True)
class Stage:
    """`kstatus`: InProgress, Current or Failed; `argo`: Progressing, Suspended, Healthy or Degraded."""

    kind: str
    name: str
    status: Mapping[str, Any]
    kstatus: str
    argo: str

    @property
    def body(self) -> dict[str, Any]:
        return {"metadata": {"generation": 1}, "status": self.status}

    def __str__(self) -> str:
        return f"{self.kind}: {self.name}"


def unseen(kind: str) -> Stage:
    """As the API server makes it."""
    (version,) = read_yaml(CRDS / f"{kind.lower()}.yaml")["spec"]["versions"]
    status = version["schema"]["openAPIV3Schema"]["properties"]["status"]["default"]
    return Stage(kind, "nobody has looked at it yet", status, "InProgress", "Progressing")


def told(
    r: Restatement, *attempts: Attempt, others: Sequence[Restatement] = (), dataset: Dataset | None = None, **world: Any
) -> Mapping[str, Any]:
    """Its status, with these attempts of its run."""
    runs: tuple[ObservedRun, ...] = (a_run(a_restatement_run(r), *attempts),) if attempts else ()
    actions = decide(dataset or a_dataset(), a_world(restatements=(r, *others), runs=runs, **world), NOW, SETTINGS)
    return actions.restatement_statuses[r.meta.name]


def tried(state: AttemptState, r: Restatement | None = None, **changes: Any) -> Attempt:
    r = r or a_restatement()
    return an_attempt(a_restatement_run(r), state, for_uid=r.meta.uid, **changes)


def answered(r: Restatement, **answer: Any) -> Attempt:
    """A run that succeeded with this result of its request."""
    result = RequestResult(key=r.key, name=r.meta.full_name, **answer)
    return tried(AttemptState.SUCCEEDED, r, result=a_result(a_restatement_run(r), requests=[result]))


def committed(r: Restatement) -> dict[str, Any]:
    return {"table": a_table(a_ledger(requests=[a_request_entry(r.key)]))}


def _restatements() -> list[Stage]:
    active, failed = AttemptState.ACTIVE, AttemptState.FAILED
    plain, dry, cancelled = a_restatement(), a_restatement(dryRun=True), a_restatement(cancel=True)
    late, listed = a_restatement(deadlineSeconds=60), a_restatement(batchIdsFrom={"uri": "s3://lake/ids"})
    in_time = a_restatement(deadlineSeconds=86400)
    undo = a_restatement("undo", operation="Undo", batchIds=[], undoes={"name": "revert-a"})
    in_buffer = {"batchId": "B", "uri": "s3://lake/buffer/flights/B/"}
    paused = a_dataset(meta={"annotations": {"lethe.dev/paused": "true"}})
    oom = [tried(failed, number=n, exit_code=137, oom=True) for n in (1, 2, 3)]
    crashed = [tried(failed, number=n, exit_code=134) for n in (1, 2, 3, 4, 5)]
    ended = showing(plain, told(plain, **committed(plain)))
    before = a_dataset(status={"table": {"uuid": "table-uuid", "snapshotId": 1, "sequenceNumber": 5}})
    nowhere = without_dataset(
        "flights", [plain, a_restatement("c", cancel=True), a_restatement("l", deadlineSeconds=1)], NOW
    )
    plan = AffectedFiles(files=1, bytes=1, whole_files=0)
    again = {"succeeded": False, "again": True, "reason": "ReplacementNotFound"}
    missing = Unmet("ListNotFound", "There is none.")

    under_way = {
        "waits for its turn": told(plain),
        "has a deadline that is not over": told(in_time),
        "waits for what makes its batch": told(a_replay("B", "C", "b"), others=[a_replay("A", "B", "a", suspend=True)]),
        "waits for what it undoes": told(undo, others=[plain]),
        "waits for the table": told(plain, table=NoTable()),
        "waits for the catalog": told(plain, table=AWAY),
        "waits for its list": told(replace(listed, listed=missing)),
        "its Dataset is paused": told(plain, dataset=paused),
        "is about to start": told(plain, tried(active)),
        "writes": told(plain, tried(active, progress=BEGUN)),
        "is tried again": told(plain, tried(failed, exit_code=20)),
        "lost its driver": told(plain, tried(failed, exit_code=None)),
        "was killed for memory once": told(plain, oom[0]),
        "was kept out for now": told(plain, answered(plain, **again)),
        "ended and is not in the table": told(plain, tried(AttemptState.SUCCEEDED)),
        "is being cancelled": told(cancelled, tried(active)),
        "is cancelled while the catalog is away": told(cancelled, tried(failed, exit_code=None), table=AWAY),
        "is over its deadline and runs": told(late, tried(active)),
        "there is no Dataset": nowhere.restatement_statuses["revert-a"],
    }
    good = {
        "succeeded": told(plain, **committed(plain)),
        "succeeded before its deadline": told(in_time, **committed(in_time)),
        "planned": told(dry, answered(dry, succeeded=True, plan=plan)),
        "cancelled": told(cancelled),
        "cancelled after a failure": told(cancelled, tried(failed, exit_code=20)),
        "cancelled too late": told(cancelled, **committed(cancelled)),
        "cancelled without a Dataset": nowhere.restatement_statuses["c"],
    }
    bad = {
        "failed for good": told(plain, tried(failed, exit_code=10)),
        "refused by the run": told(plain, answered(plain, succeeded=False, reason="AlreadyReplaced")),
        "a dry run of what would be refused": told(dry, answered(dry, succeeded=False, reason="AlreadyReplaced")),
        "refused by the operator": told(a_restatement(operation="Replay", replacement=in_buffer)),
        "its list is none": told(replace(listed, listed=replace(missing, reason="InvalidIdList", final=True))),
        "what it undoes is not there": told(undo),
        "its Dataset's table is another's": told(plain, table=a_table(claim="ns/other")),
        "was killed for memory three times": told(plain, *oom),
        "failed five times by itself": told(plain, *crashed),
        "over its deadline": told(late),
        "over its deadline without a Dataset": nowhere.restatement_statuses["l"],
        "rolled back": told(ended, dataset=before),
    }
    return [
        unseen("Restatement"),
        *(Stage("Restatement", name, status, "InProgress", "Progressing") for name, status in under_way.items()),
        Stage("Restatement", "suspended", told(a_restatement(suspend=True)), "InProgress", "Suspended"),
        *(Stage("Restatement", name, status, "Current", "Healthy") for name, status in good.items()),
        *(Stage("Restatement", name, status, "Failed", "Degraded") for name, status in bad.items()),
    ]


def _dataset(dataset: Dataset | None = None, **world: Any) -> Mapping[str, Any]:
    status = decide(dataset or a_dataset(), a_world(**world), NOW, SETTINGS).dataset_status
    assert status is not None
    return status


def _datasets() -> list[Stage]:
    paused = a_dataset(meta={"annotations": {"lethe.dev/paused": "true"}})
    spec = a_consolidation()
    fails = [an_attempt(spec, AttemptState.FAILED, number=n, exit_code=20) for n in (1, 2, 3)]
    create = {"catalog": "main", "name": "air.flights", "create": {"schema": "id INT"}}
    due = a_ledger(a_tombstone("A", evict_by=NOW + timedelta(days=30)))
    return [
        unseen("Dataset"),
        Stage("Dataset", "available", _dataset(), "Current", "Healthy"),
        Stage(
            "Dataset",
            "before its first batch",
            _dataset(a_dataset(table=create), table=NoTable()),
            "Current",
            "Healthy",
        ),
        Stage("Dataset", "paused", _dataset(paused), "Current", "Suspended"),
        Stage("Dataset", "the catalog is away", _dataset(table=AWAY), "InProgress", "Progressing"),
        Stage("Dataset", "another's table", _dataset(table=a_table(claim="ns/other")), "Failed", "Degraded"),
        Stage("Dataset", "an evictBy and no policy", _dataset(table=a_table(due)), "Failed", "Degraded"),
        Stage("Dataset", "a run failed once", _dataset(runs=(a_run(spec, fails[0]),)), "InProgress", "Healthy"),
        Stage("Dataset", "runs keep failing", _dataset(runs=(a_run(spec, *fails),)), "InProgress", "Progressing"),
    ]


def own_status(policy: VacuumPolicy) -> Mapping[str, Any]:
    return dict(document(own(policy, policy.status, NOW)))


def _policies() -> list[Stage]:
    never = a_policy(window={"schedule": "0 0 31 2 *", "durationSeconds": 3600})
    return [
        unseen("VacuumPolicy"),
        Stage("VacuumPolicy", "in force", own_status(a_policy()), "Current", "Healthy"),
        Stage("VacuumPolicy", "a window that never opens", own_status(never), "Failed", "Degraded"),
    ]


def stages() -> list[Stage]:
    return [*_restatements(), *_datasets(), *_policies()]
