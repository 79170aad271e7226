"""Says what is not settled yet: resources that are not ready, runs that are active, erasures that are open. Pure."""

from collections.abc import Collection, Iterable, Iterator

from tests.cluster.kube import Object, condition

WARM_DRIVER = "lethe-warm-driver"
VACUUM_IS_OVER = ("", "Later")


def unsettled(
    datasets: Iterable[Object], restatements: Iterable[Object], jobs: Iterable[Object], refused: Collection[str]
) -> list[str]:
    """What still has to happen, one line each.

    Args:
        refused: Names of the Restatements that were refused, as they may be.
    """
    of_datasets = (line for body in datasets for line in _of_dataset(body))
    of_restatements = (line for body in restatements for line in _of_restatement(body, refused))
    of_jobs = (
        f"Job {job['metadata']['name']} is active"
        for job in jobs
        if job["metadata"]["name"] != WARM_DRIVER and not (condition(job, "Complete") or condition(job, "Failed"))
    )
    return [*of_datasets, *of_restatements, *of_jobs]


def _of_dataset(body: Object) -> Iterator[str]:
    name, status = f"Dataset {body['metadata']['name']}", body.get("status", {})
    if status.get("observedGeneration") != body["metadata"]["generation"]:
        yield f"{name}: its last edit is not observed"
    yield from _conditions(body, name, {"Ready": "True", "Stalled": "False"})
    for run in status.get("runs", ()):
        if "finishTime" not in run:
            yield f"{name}: run {run.get('name')} is active ({run.get('phase')})"
    if waiting := status.get("buffer", {}).get("batches"):
        yield f"{name}: {waiting} batches wait in the buffer"
    if open_ := status.get("erasures", {}).get("open"):
        yield f"{name}: {open_} erasures are open"
    vacuum = status.get("vacuum", {})
    if vacuum.get("decision", "") not in VACUUM_IS_OVER:
        yield f"{name}: vacuum {vacuum['decision']} ({vacuum.get('reason')})"


def _of_restatement(body: Object, refused: Collection[str]) -> Iterator[str]:
    name = body["metadata"]["name"]
    if name in refused:
        return
    wanted = {"Succeeded": "True", "Ready": "True", "Stalled": "False"}
    if body["spec"]["operation"] == "Erase":
        wanted["Erased"] = "True"
    yield from _conditions(body, f"Restatement {name}", wanted)


def _conditions(body: Object, name: str, wanted: dict[str, str]) -> Iterator[str]:
    for kind, status in wanted.items():
        seen = condition(body, kind)
        if seen.get("status") != status:
            yield f"{name}: {kind}={seen.get('status')} {seen.get('reason', '')}: {seen.get('message', '')}"
