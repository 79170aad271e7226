"""Runs the asset, the sensor and the job of examples/dagster in Dagster, and prints what happened as JSON."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import dagster as dg

sys.path.insert(0, str(Path(__file__).parents[2] / "examples/dagster"))
import orders as example

PARTITION = "2026-11-29"
SECONDS = 60


def main() -> None:
    definitions = example.definitions
    with dg.DagsterInstance.ephemeral() as instance:

        def sensed(cursor: str | None) -> tuple[list[list[Any]], str | None]:
            context = dg.build_sensor_context(
                instance, cursor, definitions=definitions, resources=dict(definitions.resources)
            )
            result = definitions.resolve_sensor_def("batches_of_orders").evaluate_tick(context)
            for request in result.dynamic_partitions_requests or ():
                instance.add_dynamic_partitions(request.partitions_def_name, list(request.partition_keys))
            return [[type(e).__name__, e.partition] for e in result.asset_events], result.cursor

        instance.add_dynamic_partitions("orders", [PARTITION])
        run = dg.materialize(
            [example.orders], instance=instance, partition_key=PARTITION, resources=dict(definitions.resources)
        )
        (asset,) = run.asset_materializations_for_node("orders")
        events, cursor = sensed(None)
        config = {"ops": {"revert_run": {"config": {"run_id": run.run_id, "reason": "rates of the wrong day"}}}}
        definitions.resolve_job_def("take_back").execute_in_process(instance=instance, run_config=config)
        ends, later = time.monotonic() + SECONDS, list[list[Any]]()
        while not later:  # the gateway's batches are some seconds old
            assert time.monotonic() < ends, "the sensor does not report what was taken back"
            later, cursor = sensed(cursor)
        nothing, _ = sensed(cursor)
        print(
            json.dumps(
                {
                    "run": run.run_id,
                    "rows": asset.metadata["lethe/rows"].value,
                    "events": events,
                    "partitions": instance.get_dynamic_partitions("orders"),
                    "later": later,
                    "nothing": nothing,
                }
            )
        )


main()
