"""A demo of Lethe, step by step: flights are promoted, restated and vacuumed. `make demo-cluster` runs it.

It applies the YAML files of this folder to the cluster that KUBECONFIG names, reads the table with Lethe's SDK, and compares each
number with the result of pandas on the source. It exits with 0 only if all numbers are equal. It may be repeated: first it
removes the objects of an earlier run.
"""

import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import lethe
import pandas as pd
from botocore.exceptions import BotoCoreError
from cluster import gateway_url, kubectl, look, produce, received, start_kafka, start_receiver
from lake import Lake, connect
from lethe_local.demo.story import (
    BATCH_COLUMN,
    Console,
    DemoStep,
    World,
    batches,
    check,
    corrected,
    correction,
    fail,
    flights,
    promoted,
    rows_of,
    say,
    succeeded,
    summary,
)
from sqlalchemy.exc import OperationalError

HERE = Path(__file__).parent
TABLE = "air.flights"
BUFFER = "s3://lake/buffer/flights"
RESTATED = "s3://lake/restated"
STREAMED, STREAMED_BUFFER = "air.departures", "s3://lake/buffer/departures"
REVERTED = ("2013-02-08.EV", "2013-02-08.UA", "2013-02-09.EV")
REPLACED, REPLACEMENT = "2013-01-01.UA", "2013-01-01.UA.2"
TOMBSTONES = len(REVERTED) + 1
# The batches from this day on come through the gateway.
UPLOADED_FROM = "2013-12-25"


def main() -> None:
    started = time.monotonic()
    lake = connect()
    clean(lake)
    start_receiver(HERE / "receiver.yaml")
    fill_buffer(lake)
    total = consolidate(lake)
    total = upload(lake, total)
    total = revert(lake, total)
    replay(lake, total)
    vacuum(lake)
    events()
    console()
    stream(lake)
    say("\nThe resources in the cluster:\n")
    say(kubectl("get", "datasets,restatements,vacuumpolicies"))
    say(
        f"All numbers were right. The demo took {time.monotonic() - started:.0f}s, and the cluster still runs. Try next:\n"
    )
    say(
        '  eval "$(make -s env)"                                  # reach the cluster, the bucket and the catalog from here\n'
        "  kubectl port-forward -n lethe-system service/lethe-gateway 8443:443   # then open http://localhost:8443/console/\n"
        "  kubectl create token analyst                           # to log in there\n"
        "  kubectl logs deployment/receiver                       # the status events\n"
        "  kubectl describe dataset flights                       # conditions, runs and events\n"
        "  kubectl explain restatement.spec                       # all fields of a Restatement\n"
        "  kubectl create secret generic erase-aircraft --from-literal=values=N14228\n"
        "  kubectl apply -f examples/flights/restatement-erase-records.yaml   # erase the flights of this aircraft\n"
        "  kubectl apply -f examples/flights/restatement-revert.yaml   # again: no effect, because it is in the ledger\n"
        "  make down                                              # remove the cluster"
    )


def clean(lake: Lake) -> None:
    step = DemoStep("Removing the objects of an earlier demo", look)
    restatements = (
        "restatement-replay",
        "restatement-revert",
        "restatement-departures",
        "restatement-erase-records",
        "restatement-redact",
    )
    removed = ("vacuumpolicy", *restatements, "dataset", "departures", "producer", "analyst", "receiver", "kafka")
    names = [f"-f{HERE / name}.yaml" for name in removed]
    kubectl("delete", "--ignore-not-found", "--timeout=60s", *names)
    kubectl("wait", "--for=delete", "job", "-l", "lethe.dev/dataset=flights", "--timeout=120s")
    kubectl("delete", "--ignore-not-found", "--timeout=60s", "pod/producer-of-messages", "secret/erase-aircraft")
    lake.drop_table(TABLE)
    lake.drop_table(STREAMED)
    objects = lake.clear(BUFFER) + lake.clear(RESTATED) + lake.clear(STREAMED_BUFFER)
    step.done(f"{objects} objects removed")


def fill_buffer(lake: Lake) -> None:
    early = [batch for batch in batches() if batch.id < UPLOADED_FROM]
    step = DemoStep(f"A producer writes a year of flights into {BUFFER}, one folder for each day and carrier", look)
    done = 0
    for done in lake.put_batches(BUFFER, early):
        step.live(f"{done:,} of {len(early):,} batches")
    check("complete batches in the buffer", len(early), done)
    step.done(f"{done:,} batches with {sum(batch.rows for batch in early):,} rows wait")


def consolidate(lake: Lake) -> int:
    step = DemoStep("kubectl apply -f dataset.yaml: Lethe creates the table and moves the batches into it", look)
    kubectl("apply", "-f", str(HERE / "dataset.yaml"))
    early = flights()[flights()[BATCH_COLUMN] < UPLOADED_FROM]
    wanted = early[BATCH_COLUMN].nunique()
    step.wait("all batches to be promoted", lambda world: promoted(world.dataset) >= wanted, within_seconds=600)
    files = lake.data_files(TABLE)
    step.done(f"{wanted:,} batches are now {len(files)} data files")
    return count(lake, len(early), "after the consolidation")


def upload(lake: Lake, total: int) -> int:
    step = DemoStep("Another producer, with a token and nothing else, uploads the last week through the gateway", look)
    kubectl("apply", "-f", str(HERE / "producer.yaml"))
    token = kubectl("create", "token", "producer", "--duration=1h").strip()
    late = [batch for batch in batches() if batch.id >= UPLOADED_FROM]
    with (
        tempfile.TemporaryDirectory() as folder,
        gateway_url() as address,
        lethe.GatewayClient(address, token) as gateway,
    ):
        for number, batch in enumerate(late, 1):
            path = Path(folder, batch.id)
            path.mkdir()
            (path / "part-0.parquet").write_bytes(batch.parquet)
            check("the batch was compared with the table", True, gateway.put("flights", batch.id, path).checked)
            step.live(f"{number} of {len(late)} batches")
        refused = Path(folder, "refused")
        refused.mkdir()
        (refused / "part-0.csv").write_text("this is no Parquet file")
        try:
            gateway.put("flights", "refused", refused)
            fail("the gateway took a file that is no Parquet file")
        except lethe.InputError as e:
            if e.reason != "BatchRefused":
                raise
        gateway.abandon("flights", "refused")
    step.wait("the batches to be promoted", lambda world: promoted(world.dataset) >= flights()[BATCH_COLUMN].nunique())
    step.done(f"{len(late)} batches are promoted; a file that is no Parquet file was refused at once")
    return count(lake, len(flights()), "after the upload", before=total)


def revert(lake: Lake, total: int) -> int:
    step = DemoStep(f"kubectl apply -f restatement-revert.yaml: revert {len(REVERTED)} batches", look)
    kubectl("apply", "-f", str(HERE / "restatement-revert.yaml"))
    world = step.wait("the commit", lambda world: succeeded(world.restatement("revert-blizzard")))
    result = world.restatement("revert-blizzard")["result"]
    check("tombstones added", len(REVERTED), result["tombstonesAdded"])
    check("rows deleted", rows_of(REVERTED), result["rowsDeleted"])
    step.done(
        f"{result['rowsDeleted']} rows hidden by {result['tombstonesAdded']} tombstones; no data file has changed"
    )
    return count(lake, total - rows_of(REVERTED), "after the revert", before=total)


def replay(lake: Lake, total: int) -> int:
    step = DemoStep(f"kubectl apply -f restatement-replay.yaml: {REPLACEMENT} replaces {REPLACED}, in one commit", look)
    batch = corrected(REPLACED, REPLACEMENT)
    lake.put_batch(f"{RESTATED}/{REPLACEMENT}", batch)
    kubectl("apply", "-f", str(HERE / "restatement-replay.yaml"))
    world = step.wait("the commit", lambda world: succeeded(world.restatement("replay-new-year")))
    result = world.restatement("replay-new-year")["result"]
    check("rows deleted", rows_of([REPLACED]), result["rowsDeleted"])
    check("rows added", batch.rows, result["rowsAdded"])
    step.done(f"{result['rowsDeleted']} rows replaced by {result['rowsAdded']}")
    after = count(lake, total - rows_of([REPLACED]) + batch.rows, "after the replay", before=total)
    check_contents(lake)
    return after


def vacuum(lake: Lake) -> None:
    files = lake.data_files(TABLE)
    tombstones = lake.tombstones(TABLE)
    check("tombstones before the vacuum", TOMBSTONES, tombstones)
    say(
        f"    before the vacuum: {len(files)} data files of {sum(files.values()):,} rows, {tombstones} active tombstones"
    )
    step = DemoStep(
        f"kubectl apply -f vacuumpolicy.yaml: its threshold of {TOMBSTONES} tombstones is reached, so a vacuum starts",
        look,
    )
    kubectl("apply", "-f", str(HERE / "vacuumpolicy.yaml"))
    step.wait(
        "the vacuum",
        lambda world: world.finished_run("Vacuum") is not None and world.dataset["tombstones"]["active"] == 0,
    )
    after = lake.data_files(TABLE)
    purged = files.keys() - after.keys()
    step.done(f"{len(purged)} data files rewritten as {len(after.keys() - files.keys())}")
    live = len(expected())
    tombstones = lake.tombstones(TABLE)
    say(
        f"    after the vacuum: {len(after)} data files of {sum(after.values()):,} rows, {tombstones} active tombstones"
    )
    check("tombstones after the vacuum", 0, tombstones)
    check("rows in the data files", live, sum(after.values()))
    left = purged & lake.keys(lake.catalog.load_table(TABLE).location())
    check("purged data files still in the bucket", 0, len(left))
    if not purged:
        fail("the vacuum rewrote no data file")
    say(f"    the {len(purged)} purged files, and their rows, are gone from the bucket")
    count(lake, live, "after the vacuum")
    check_contents(lake)


def events() -> None:
    step = DemoStep("The operator has published all this as status events, in this demo to a receiver by HTTP", look)
    batches_ever = flights()[BATCH_COLUMN].nunique() + 1
    wanted = {
        "batch.promoted.v1": batches_ever,
        "batch.reverted.v1": len(REVERTED),
        "batch.replaced.v1": 1,
        "tombstones.purged.v1": 1,  # it names no batch, so all of them count once
    }

    def arrived() -> dict[str, int]:
        counts = received()
        return {type: counts[type] for type in wanted}

    step.wait("the events", lambda _: arrived() == wanted, within_seconds=120)
    step.done(", ".join(f"{type}: {count:,}" for type, count in wanted.items()))


def console() -> None:
    step = DemoStep("kubectl apply -f analyst.yaml: what an analyst sees in the console", look)
    kubectl("apply", "-f", str(HERE / "analyst.yaml"))
    token = kubectl("create", "token", "analyst", "--duration=1h").strip()
    with gateway_url() as address:
        pages = Console(address, token)
        shown = pages.number("Promoted batches")
        check("promoted batches on the console's page", expected()[BATCH_COLUMN].nunique(), shown)
        history = pages.history(REVERTED[0])
    if history != ["Promoted", "Reverted", "Purged"]:
        fail(f"the console's history of {REVERTED[0]} is {history}")
    step.done(f"{shown:,} batches are part of the table; {REVERTED[0]}: {', '.join(history)}")


def stream(lake: Lake) -> None:
    step = DemoStep("kubectl apply -f departures.yaml: the departures of a day come as messages of Kafka", look)
    start_kafka(HERE / "kafka.yaml", os.environ["LETHE_KAFKA_IMAGE"])
    frame = flights()[flights()["time_hour"].dt.date.astype(str) == "2013-12-31"]
    columns = ["carrier", "flight", "origin", "dest", "dep_delay", "time_hour"]
    messages = frame[columns].to_json(orient="records", lines=True, date_format="iso").splitlines()
    produce("departures", [*messages, "not a row"])
    kubectl("apply", "-f", str(HERE / "departures.yaml"))

    def departures(world: World) -> Any:
        return world.statuses.get(("Dataset", "departures"), {})

    step.wait("the messages to be promoted", lambda world: promoted(departures(world)) >= 1)
    world = step.wait("the report", lambda world: departures(world).get("source", {}).get("epoch", 0) >= 1)
    source = departures(world)["source"]
    check("rows of messages", len(messages), source["rows"])
    check("messages that are no rows", 1, source["refusedMessages"])
    check("rows of the table", len(messages), lethe.scan(STREAMED, catalog=lake.catalog).count())
    kubectl("apply", "-f", str(HERE / "restatement-departures.yaml"))
    step.wait("the commit", lambda world: succeeded(world.restatement("revert-departures")))
    check("rows after the revert", 0, lethe.scan(STREAMED, catalog=lake.catalog).count())
    step.done(f"{source['rows']} messages became rows, one was set aside, and a Restatement has taken the batch back")


def count(lake: Lake, expected: int, when: str, before: int | None = None) -> int:
    """The row count of the SDK. It must equal that of pandas."""
    found = lethe.scan(TABLE, catalog=lake.catalog).count()
    check(f"rows {when}", expected, found)
    earlier = f"{before:,} rows before, " if before is not None else ""
    say(f"    lethe.scan: {earlier}{found:,} rows {when}, the same as with pandas")
    return found


def expected() -> pd.DataFrame:
    """The table's rows after both restatements, computed with pandas."""
    frame = flights()
    kept = frame[~frame[BATCH_COLUMN].isin([*REVERTED, REPLACED])]
    return pd.concat([kept, correction(REPLACED).assign(**{BATCH_COLUMN: REPLACEMENT})])


def check_contents(lake: Lake) -> None:
    """Check the rows and the sum of the delays of each batch."""
    found = lethe.scan(TABLE, columns=[BATCH_COLUMN, "arr_delay"], catalog=lake.catalog).to_arrow().to_pandas()
    wanted, found = summary(expected()), summary(found)
    if not wanted.equals(found):
        differing = wanted.join(found, how="outer", lsuffix=" wanted", rsuffix=" found").query(
            "not (`size wanted` == `size found` and `sum wanted` == `sum found`)"
        )
        fail(f"{len(differing)} batches differ from the source:\n{differing.head()}")
    say(
        f"    each of the {len(wanted):,} batches has its rows and its delays, {wanted['sum'].sum():,} minutes in total"
    )


if __name__ == "__main__":
    try:
        main()
    except (OSError, BotoCoreError, OperationalError) as e:
        fail(
            f"{type(e).__name__}: {str(e).splitlines()[0]}\n`make status` shows whether the cluster and its services run."
        )
    except KeyboardInterrupt:
        sys.exit("\nInterrupted. The cluster still runs; run `make demo-cluster` to start again.")
