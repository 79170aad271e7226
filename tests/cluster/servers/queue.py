"""A queue server (ElasticMQ) in the cluster. The image of runs has Java; the server's jars come from the bucket. I/O only."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.cluster.install import image
from tests.cluster.kube import Cluster
from tests.cluster.lake import QUEUE, QUEUE_PORT, SERVICES, ClusterLake
from tests.cluster.servers.pods import server
from tests.support.servers import sqs
from tests.support.servers.process import class_path
from tests.support.servers.sqs import Sqs

JARS = "s3://lake/tests/queue-jars"
START = """
import os, boto3, glob
from botocore.config import Config

s3 = boto3.client(
    "s3", endpoint_url="http://s3.{services}:7070", region_name="us-east-1", config=Config(s3={{"addressing_style": "path"}})
)
os.makedirs("/tmp/jars")
for found in s3.list_objects_v2(Bucket="lake", Prefix="tests/queue-jars/")["Contents"]:
    s3.download_file("lake", found["Key"], "/tmp/jars/" + found["Key"].rsplit("/", 1)[1])
shared = [jar for name in {shared} for jar in glob.glob(f"/opt/lethe/spark/jars/{{name}}*.jar")]
paths = ":".join(["/tmp/jars/*", *shared])
command = ["java", "-Xmx128m", "-XX:+UseSerialGC", "-Dconfig.file=/files/server.conf", "-cp", paths, "org.elasticmq.server.Main"]
os.execvp("java", command)
"""


@contextmanager
def running(cluster: Cluster, lake: ClusterLake) -> Iterator[Sqs]:
    """The operator reaches it by the properties that the chart was installed with, the test by a port of the node."""
    have = {key.rsplit("/", 1)[1] for key in lake.keys(JARS)}
    for jar in class_path("sqs").split(":"):
        if Path(jar).name not in have:
            lake.put(f"{JARS}/{Path(jar).name}", Path(jar).read_bytes())
    files = {
        "server.conf": sqs.configuration("0.0.0.0", f"{QUEUE}.{SERVICES}", QUEUE_PORT),
        "start.py": START.format(services=SERVICES, shared=sqs.OF_PYSPARK),
    }
    command = ["python", "/files/start.py"]
    with server(cluster, QUEUE, image("LETHE_SPARK_IMAGE"), command, files, {"sqs": QUEUE_PORT}) as node_ports:
        yield Sqs(f"http://{lake.services.node}:{node_ports['sqs']}")
