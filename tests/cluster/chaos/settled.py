"""Says what is not settled yet: resources that are not ready, runs that are active, erasures that are open. Pure."""

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass

from tests.cluster.kube import Object, condition

WARM_DRIVER = "lethe-warm-driver"
VACUUM_IS_OVER = ("", "Later")


@dataclass(frozen=True)
class OpenEnd:
    text: str
    held: bool = False  # an erasure waits for somebody else, or for a date

    def __str__(self) -> str:
        return self.text


def unsettled(
    datasets: Iterable[Object], restatements: Iterable[Object], jobs: Iterable[Object], refused: Collection[str]
) -> list[OpenEnd]:
    """What still has to happen.

    Args:
        refused: Names of the Restatements that were refused, as they may be.
    """
    of_datasets = (line for body in datasets for line in _of_dataset(body))
    of_restatements = (line for body in restatements for line in _of_restatement(body, refused))
    of_jobs = (
        OpenEnd(f"Job {job['metadata']['name']} is active")
        for job in jobs
        if job["metadata"]["name"] != WARM_DRIVER and not (condition(job, "Complete") or condition(job, "Failed"))
    )
    return [*of_datasets, *of_restatements, *of_jobs]


def _of_dataset(body: Object) -> Iterator[OpenEnd]:
    name, status = f"Dataset {body['metadata']['name']}", body.get("status", {})
    if status.get("observedGeneration") != body["metadata"]["generation"]:
        yield OpenEnd(f"{name}: its last edit is not observed")
    yield from _conditions(body, name, {"Ready": "True", "Stalled": "False"})
    for run in status.get("runs", ()):
        if "finishTime" not in run:
            yield OpenEnd(f"{name}: run {run.get('name')} is active ({run.get('phase')})")
    if waiting := status.get("buffer", {}).get("batches"):
        yield OpenEnd(f"{name}: {waiting} batches wait in the buffer")
    erasures = status.get("erasures", {})
    if open_ := erasures.get("open"):
        yield OpenEnd(f"{name}: {open_} erasures are open", held=open_ == erasures.get("blocked"))
    vacuum = status.get("vacuum", {})
    if vacuum.get("decision", "") not in VACUUM_IS_OVER:
        yield OpenEnd(f"{name}: vacuum {vacuum['decision']} ({vacuum.get('reason')})")


def _of_restatement(body: Object, refused: Collection[str]) -> Iterator[OpenEnd]:
    name = body["metadata"]["name"]
    if name in refused:
        return
    wanted = {"Succeeded": "True", "Ready": "True", "Stalled": "False"}
    if body["spec"]["operation"] == "Erase":
        wanted["Erased"] = "True"
    yield from _conditions(body, f"Restatement {name}", wanted)


def _conditions(body: Object, name: str, wanted: dict[str, str]) -> Iterator[OpenEnd]:
    for kind, status in wanted.items():
        seen = condition(body, kind)
        if seen.get("status") != status:
            reason = seen.get("reason", "")
            said = f"{name}: {kind}={seen.get('status')} {reason}: {seen.get('message', '')}"
            yield OpenEnd(said, held=(kind, reason) == ("Erased", "ErasureBlocked"))
