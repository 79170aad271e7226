"""An asset that is a Dataset, whose partitions are batches; a sensor that shows all its batches; a job that takes back a run.

It needs `pip install lethe-lake dagster`, and the gateway in two variables:

    export LETHE_GATEWAY=https://lethe.example.org LETHE_GATEWAY_TOKEN=$(kubectl create token loader)
    dagster dev -f orders.py
"""

import dagster as dg
import pyarrow as pa
from lethe.integrations.dagster import LetheResource, batch_sensor

batches = dg.DynamicPartitionsDefinition(name="orders")


@dg.asset(partitions_def=batches)
def orders(context: dg.AssetExecutionContext, lethe: LetheResource) -> dg.MaterializeResult:
    """The batch is named after the partition, and its reference is the run id. The run ends when the rows are in the table."""
    rows = pa.table({"id": [1, 2, 3]})
    return lethe.deliver(context, rows)


class Run(dg.Config):
    run_id: str
    reason: str = ""


@dg.op
def revert_run(config: Run, lethe: LetheResource) -> None:
    lethe.revert_run("orders", config.run_id, config.reason)


@dg.job
def take_back() -> None:
    """A partition that was taken back gets its corrected rows under another key: an id of a batch is used once."""
    revert_run()


definitions = dg.Definitions(
    assets=[orders],
    jobs=[take_back],
    sensors=[batch_sensor("orders", batches, "orders", minimum_interval_seconds=60)],
    resources={"lethe": LetheResource(url=dg.EnvVar("LETHE_GATEWAY"), token=dg.EnvVar("LETHE_GATEWAY_TOKEN"))},
)
