"""The examples of orchestrators, each with the real package in an environment of its own, against `lethe local up --gateway`."""

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import lethe
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from tests.local.lake import TIMEOUT_SECONDS, Lake, orders, running
from tests.support.environments import python_of
from tests.support.servers.postgres import free_port

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
LINES_AT_MOST = 60


@dataclass
class Site:
    """A lake with the Dataset `orders`, and its gateway."""

    lake: Lake
    url: str
    token: str
    gateway: lethe.GatewayClient

    def start(self, tool: str, home: Path, *command: str, **variables: str) -> "subprocess.Popen[str]":
        """Start a command as somebody who has installed the tool and Lethe, with a home of its own."""
        environment = {
            "PATH": f"{Path(python_of(tool)).parent}:/usr/bin:/bin",
            "HOME": str(home),
            "DLT_DATA_DIR": str(home / "dlt"),  # for root, dlt's default is in /var
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(ROOT / "spark_apps"),
            "PYTHONPYCACHEPREFIX": os.environ.get("PYTHONPYCACHEPREFIX", str(home / "pyc")),
            "LETHE_LOCAL": str(self.lake.home),
            "LETHE_GATEWAY": self.url,
            "LETHE_GATEWAY_TOKEN": self.token,
        }
        return subprocess.Popen(
            command, env=environment | variables, cwd=home, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip

    def ended(self, process: "subprocess.Popen[str]", code: int = 0) -> str:
        """Wait for the end of a command. Returns: what it has printed since it was last read."""
        printed, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert process.returncode == code, f"{process.args}\n{printed}{self.lake.logs()}"
        return printed

    def run(self, tool: str, home: Path, *command: str, code: int = 0, **variables: str) -> str:
        return self.ended(self.start(tool, home, *command, **variables), code)

    def put(self, folder: Path, batch: str, *ids: int) -> None:
        """Another producer delivers a batch."""
        folder.mkdir()
        pq.write_table(pa.table({"id": pa.array(ids, pa.int64())}), folder / "part-0.parquet")
        self.gateway.put("orders", batch, folder)

    def delivered(self, reference: str) -> dict[str, str]:
        """The batches with this reference, and their states. They are some seconds old."""
        return {b["id"]: b["state"] for b in self.gateway.batches("orders") if b.get("reference") == reference}

    def shows(self, reference: str, **states: str) -> None:
        """Wait until these are the batches of a reference."""
        self.lake.wait_until(f"{reference}: {states}", lambda: self.delivered(reference) == states)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    port = str(free_port())
    with running(tmp_path_factory.mktemp("orchestrators"), "--gateway", "--gateway-port", port) as lake:
        url, token = f"http://127.0.0.1:{port}", (lake.home / "account/token").read_text()
        lake.apply(orders(lake.buffer))
        with lethe.GatewayClient(url, token) as gateway:
            yield Site(lake, url, token, gateway)


@pytest.mark.parametrize("tool", ["airflow", "argo", "dagster", "dbt", "dlt"])
def test_an_example_is_short(tool: str) -> None:
    files = [p for p in (EXAMPLES / tool).rglob("*") if p.suffix in (".py", ".sql", ".yaml", ".yml")]
    assert files
    assert {p.name: n for p in files if (n := len(p.read_text().splitlines())) > LINES_AT_MOST} == {}


def test_airflow_delivers_a_batch_waits_for_another_and_takes_a_run_back(site: Site, tmp_path: Path) -> None:
    variables = {
        "AIRFLOW_HOME": str(tmp_path),
        "AIRFLOW__CORE__DAGS_FOLDER": str(EXAMPLES / "airflow"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW_CONN_LETHE_DEFAULT": json.dumps({"conn_type": "lethe", "host": site.url, "password": site.token}),
    }
    shop = f"shop-{uuid4()}"

    def dag(name: str, code: int = 0, **conf: str) -> str:
        command = ("airflow", "dags", "test", name, "--conf", json.dumps(conf))
        return site.run("airflow", tmp_path, *command, code=code, **variables)

    site.run("airflow", tmp_path, "airflow", "db", "migrate", **variables)
    printed = dag("deliver_orders")
    assert "Pausing task as DEFERRED" in printed
    (run, *others) = {r for b in site.gateway.batches("orders") if (r := b.get("reference", "")).startswith("manual__")}
    assert not others
    assert f"3 rows of {run} are in the table" in printed
    site.shows(run, **{run: "promoted"})

    # The sensor waits in the triggerer for a batch that comes later.
    command = ("airflow", "dags", "test", "after_the_shop", "--conf", json.dumps({"batch_id": shop}))
    waiting = site.start("airflow", tmp_path, *command, **variables)
    assert waiting.stdout is not None
    deferred = any("running trigger in line" in line for line in waiting.stdout)
    assert deferred
    site.put(tmp_path / "shop", shop, 7)
    assert "Marking run" in site.ended(waiting)

    dag("take_back", run_id=run, reason="rates of the wrong day")
    site.shows(run, **{run: "reverted"})
    assert "NotPromoted: batch" in dag("after_the_shop", code=1, batch_id=run)


def gateway_of_dlt(site: Site) -> dict[str, str]:
    return {"DESTINATION__LETHE__URL": site.url, "DESTINATION__LETHE__TOKEN": site.token}


def test_a_load_of_dlt_is_a_batch_that_is_taken_back_by_its_id(site: Site, tmp_path: Path) -> None:
    variables = gateway_of_dlt(site)
    command = ("python", str(EXAMPLES / "dlt/orders.py"))

    first, second = (site.run("dlt", tmp_path, *command, **variables).split()[-1] for _ in range(2))
    assert site.delivered(first) | site.delivered(second) == {
        first: "promoted",
        second: "promoted",
    }  # each load has waited
    site.run("dlt", tmp_path, *command, "take-back", first, **variables)

    site.shows(first, **{first: "reverted"})
    site.shows(second, **{second: "promoted"})
    rows = lethe.scan(site.lake.table(), filter=f"batch_id = '{second}'").to_arrow()
    assert sorted(rows["id"].to_pylist()) == [4, 5, 6]


def test_a_load_of_dlt_that_was_interrupted_goes_on_as_the_same_batch(site: Site, tmp_path: Path) -> None:
    """The gateway is away when the load is complete. The next run delivers it, before it extracts anything new."""
    command = ("python", str(EXAMPLES / "dlt/orders.py"))
    here = gateway_of_dlt(site)
    away = here | {"DESTINATION__LETHE__URL": f"http://127.0.0.1:{free_port()}"}

    assert "GatewayAway" in site.run("dlt", tmp_path, *command, code=1, **away)
    (load,) = (p.name for p in (tmp_path / "dlt/pipelines/shop/load/normalized").iterdir())
    site.run("dlt", tmp_path, *command, **here)

    site.shows(load, **{load: "promoted"})


def test_a_load_of_dlt_that_would_replace_or_merge_rows_is_refused(site: Site, tmp_path: Path) -> None:
    source = (
        "import dlt; from lethe.integrations.dlt import lethe; import sys;"
        "dlt.pipeline(sys.argv[1], destination=lethe()).run([{'id': 1}], table_name='orders', write_disposition=sys.argv[1],"
        "primary_key='id')"
    )
    for disposition in ("replace", "merge"):
        printed = site.run("dlt", tmp_path, "python", "-c", source, disposition, code=1, **gateway_of_dlt(site))
        assert f"table orders has the write disposition {disposition}" in printed


def test_dagster_shows_batches_as_partitions_and_takes_a_run_back(site: Site, tmp_path: Path) -> None:
    other = f"other-{uuid4()}"
    site.put(tmp_path / "other", other, 8)
    site.gateway.wait_for_batch("orders", other)

    printed = site.run("dagster", tmp_path, "python", str(Path(__file__).with_name("dagster_orders.py")))

    seen = json.loads(printed.splitlines()[-1])
    partition = "2026-11-29"
    assert seen["rows"] == 3
    site.shows(seen["run"], **{partition: "reverted"})
    assert {*seen["partitions"]} >= {partition, other}
    assert ["AssetMaterialization", other] in seen["events"]
    assert (seen["later"], seen["nothing"]) == ([["AssetObservation", partition]], [])


def test_dbt_replays_the_batches_that_changed(site: Site, tmp_path: Path) -> None:
    project = shutil.copytree(EXAMPLES / "dbt", tmp_path / "project")
    stays, goes, comes = (f"{name}-{uuid4()}" for name in ("stays", "goes", "comes"))
    query = "import duckdb, json; c = duckdb.connect('shop.duckdb'); print(json.dumps(c.sql('from orders_by_batch').fetchall()))"

    def model() -> dict[str, list[int]]:
        site.run("dbt", project, "dbt", "run", "--profiles-dir", ".")
        return {batch: rest for batch, *rest in json.loads(site.run("dbt", project, "python", "-c", query))}

    site.put(tmp_path / "stays", stays, 1, 2)
    site.put(tmp_path / "goes", goes, 3)
    for batch in (stays, goes):
        site.gateway.wait_for_batch("orders", batch)
    first = model()
    spec = {"datasetRef": {"name": "orders"}, "operation": "Revert", "batchIds": [goes]}
    site.gateway.wait(site.gateway.restate(spec)["name"])
    site.put(tmp_path / "comes", comes, 4, 5, 6)
    site.gateway.wait_for_batch("orders", comes)
    second = model()

    assert {b: first.get(b) for b in (stays, goes, comes)} == {stays: [2, 2], goes: [1, 3], comes: None}
    assert second == {b: counted for b, counted in first.items() if b != goes} | {comes: [3, 6]}
    assert model() == second


def test_the_script_of_argo_workflows_delivers_under_the_name_of_the_workflow(site: Site, tmp_path: Path) -> None:
    templates = {t["name"]: t for t in yaml.safe_load((EXAMPLES / "argo/orders.yaml").read_text())["spec"]["templates"]}
    workflow = f"orders-{uuid4().hex[:5]}"
    source = templates["deliver"]["script"]["source"].replace("{{workflow.name}}", workflow)
    manifest = templates["take-back"]["resource"]["manifest"]
    for name, value in {"workflow": workflow, "reason": "rates of the wrong day"}.items():
        manifest = manifest.replace(f"{{{{inputs.parameters.{name}}}}}", value)

    assert site.run("dlt", tmp_path, "python", "-c", source).split()[-1] == "3"
    restated = site.gateway.restate(yaml.safe_load(manifest)["spec"])

    assert site.gateway.wait(restated["name"])["phase"] == "Succeeded"
    site.shows(workflow, **{workflow: "reverted"})
