"""Three DAGs: one delivers a batch, one waits for a batch of another producer, one takes back what a run delivered.

Copy it to your DAG folder. It needs `pip install lethe-lake`, and a connection `lethe_default`:

    airflow connections add lethe_default --conn-json \
        '{"conn_type": "lethe", "host": "https://lethe.example.org", "password": "TOKEN", "extra": {"namespace": "default"}}'
"""

import tempfile

import pyarrow as pa
import pyarrow.parquet as pq
from airflow.sdk import Param, dag, get_current_context, task
from lethe.integrations.airflow import LetheBatchSensor, LetheDeliverOperator, LetheRestateOperator


@dag(schedule=None, catchup=False)
def deliver_orders() -> None:
    @task
    def extract() -> str:
        """Writes the files of the batch. Where workers share no disk, do it in the task that delivers."""
        folder = tempfile.mkdtemp(prefix="orders-")
        pq.write_table(pa.table({"id": [1, 2, 3]}), f"{folder}/part-0.parquet")
        return folder

    @task
    def report(batch: dict) -> None:
        print(f"{batch['rows']} rows of {get_current_context()['run_id']} are in the table")

    # The batch, and its reference, are named after the run. The task ends when the rows are in the table.
    delivered = LetheDeliverOperator(task_id="deliver", dataset="orders", folder=extract())
    report(delivered.output)


@dag(schedule=None, params={"batch_id": Param(type="string")})
def after_the_shop() -> None:
    """The triggerer waits for the batch: no worker is occupied."""
    LetheBatchSensor(task_id="wait_for_shop", dataset="orders", batch_id="{{ params.batch_id }}", timeout=3600)


@dag(schedule=None, params={"run_id": Param(type="string"), "reason": Param("", type="string")})
def take_back() -> None:
    LetheRestateOperator(
        task_id="revert",
        spec={
            "datasetRef": {"name": "orders"},
            "operation": "Revert",
            "selector": {"reference": "{{ params.run_id }}"},
            "reason": "{{ params.reason }}",
        },
    )


deliver_orders()
after_the_shop()
take_back()
