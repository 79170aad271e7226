"""A table as an engine sees it that knows nothing of Lethe: Spark SQL in a pod of its own. I/O only."""

import json
from collections import Counter
from pathlib import Path

from tests.cluster.install import image
from tests.cluster.kube import Cluster
from tests.cluster.lake import CATALOG, SERVICES, WAREHOUSE, Rows, Services
from tests.cluster.plain_spark import ROW
from tests.cluster.story import RUN_SECONDS, a_name

SCRIPT = Path(__file__).with_name("plain_spark.py")
FOLDER = "/plain"


def rows_by_spark(cluster: Cluster, services: Services, table: str) -> Rows:
    """Every row that `SELECT` finds, as often as it is there. Takes about half a minute."""
    name = a_name("plain-spark")
    settings = json.dumps(spark_catalog(services))
    secret = {"settings.json": settings, SCRIPT.name: SCRIPT.read_text()}
    cluster.apply(
        {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "stringData": secret},
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name},
            "spec": {
                "restartPolicy": "Never",
                "automountServiceAccountToken": False,
                "securityContext": {"runAsNonRoot": True, "fsGroup": 185, "seccompProfile": {"type": "RuntimeDefault"}},
                "containers": [
                    {
                        "name": "spark",
                        "image": image("LETHE_SPARK_IMAGE"),
                        "imagePullPolicy": "IfNotPresent",
                        "args": [
                            "python",
                            f"{FOLDER}/{SCRIPT.name}",
                            f"{FOLDER}/settings.json",
                            f"{CATALOG}.{table}",
                        ],
                        "resources": {
                            "requests": {"cpu": "200m", "memory": "1536Mi"},
                            "limits": {"memory": "1536Mi"},
                        },
                        "securityContext": {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}},
                        "volumeMounts": [{"name": "plain", "mountPath": FOLDER, "readOnly": True}],
                    }
                ],
                "volumes": [{"name": "plain", "secret": {"secretName": name, "defaultMode": 0o440}}],
            },
        },
    )
    try:
        done = cluster.wait_for(
            f"pods/{name}",
            lambda pod: pod["status"].get("phase") in ("Succeeded", "Failed"),
            within_seconds=RUN_SECONDS,
            why="the end of the query",
        )
        log = cluster.run("logs", name)
    finally:
        cluster.delete(f"pods/{name}")
        cluster.delete(f"secrets/{name}")
    assert done["status"]["phase"] == "Succeeded", log[-4000:]
    found = (json.loads(line.removeprefix(ROW)) for line in log.splitlines() if line.startswith(ROW))
    return Counter({(batch, number): times for batch, number, times in found})


def spark_catalog(services: Services) -> dict[str, str]:
    """The catalog's settings as Iceberg's documentation has them."""
    settings = {
        "type": "jdbc",
        "uri": f"jdbc:postgresql://postgres.{SERVICES}:5432/lake",
        "jdbc.schema-version": "V1",
        "jdbc.user": services.secret["POSTGRES_USER"],
        "jdbc.password": services.secret["POSTGRES_PASSWORD"],
        "warehouse": WAREHOUSE,
        "io-impl": "org.apache.iceberg.aws.s3.S3FileIO",
        "s3.endpoint": f"http://s3.{SERVICES}:7070",
        "s3.path-style-access": "true",
        "s3.access-key-id": services.secret["AWS_ACCESS_KEY_ID"],
        "s3.secret-access-key": services.secret["AWS_SECRET_ACCESS_KEY"],
        "client.region": "us-east-1",
    }
    prefix = f"spark.sql.catalog.{CATALOG}"
    return {prefix: "org.apache.iceberg.spark.SparkCatalog", **{f"{prefix}.{k}": v for k, v in settings.items()}}
