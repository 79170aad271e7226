"""Loads orders into the Dataset `orders`: each load is one batch, named after its load id.

It needs `pip install lethe-lake 'dlt[parquet]'`, and the gateway in dlt's configuration, or in these variables:

    export DESTINATION__LETHE__URL=https://lethe.example.org DESTINATION__LETHE__TOKEN=$(kubectl create token loader)
    python orders.py
    python orders.py take-back 1764380000.123456
"""

import sys
from collections.abc import Iterator

import dlt
from lethe import GatewayClient
from lethe.integrations.dlt import lethe


@dlt.resource(write_disposition="append")
def orders(
    last: dlt.sources.incremental[int] = dlt.sources.incremental("id", initial_value=0),  # noqa: B008
) -> Iterator[list[dict[str, int]]]:
    """What came since the last load. A table with `_` in its name has a Dataset with `-`."""
    first = last.last_value + 1
    yield [{"id": first}, {"id": first + 1}, {"id": first + 2}]


def load() -> None:
    """The pipeline ends when the batch is in the table. Run it again after any failure: it goes on with the same load."""
    pipeline = dlt.pipeline("shop", destination=lethe())
    print(*pipeline.run(orders()).loads_ids)


def take_back(load_id: str) -> None:
    """One Restatement for the batch of each Dataset. `lethe revert --everywhere --reference LOAD-ID` does it for all tables."""
    url, token = (dlt.secrets[f"destination.lethe.{name}"] for name in ("url", "token"))
    spec = {"datasetRef": {"name": "orders"}, "operation": "Revert", "selector": {"reference": load_id}}
    with GatewayClient(url, token) as gateway:
        print(gateway.wait(gateway.restate(spec)["name"])["phase"])


if __name__ == "__main__":
    take_back(sys.argv[2]) if sys.argv[1:2] == ["take-back"] else load()
