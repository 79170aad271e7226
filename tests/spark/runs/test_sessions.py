"""One driver, two Spark sessions, one after the other, as a run with executors may need them."""

import os
import subprocess
import sys

from tests.support.lake import CATALOG, Lake

# The settings of the first session would make the second one fail if it inherited them, as between Kubernetes and one process.
# So would its secret, which Spark keeps with Hadoop's user.
TWO_SESSIONS = f"""
from lethe_spark import make_session
first = make_session("{CATALOG}", {{"spark.master": "local[3]", "spark.of.the.first": "x", "spark.task.cpus": "3"}})
assert first.range(10).count() == 10
first.stop()
second = make_session("{CATALOG}", {{"spark.master": "local[2]", "spark.authenticate": "false"}})
conf = dict(second.sparkContext.getConf().getAll())
print(second.range(100).count(), conf["spark.master"], conf.get("spark.of.the.first"), conf.get("spark.task.cpus"))
print(second.sql("SHOW NAMESPACES IN {CATALOG}").count() >= 0)
hadoop = second._jvm.org.apache.hadoop
print(hadoop.security.UserGroupInformation.getCurrentUser().getCredentials().getSecretKey(hadoop.io.Text("sparkCookie")))
"""


def test_a_second_session_has_its_own_settings_in_the_same_jvm(lake: Lake) -> None:
    _ = lake.catalog
    done = subprocess.run(
        [sys.executable, "-c", TWO_SESSIONS],
        capture_output=True,
        text=True,
        timeout=180,
        env={**os.environ, "PYICEBERG_HOME": str(lake.home), "LETHE_DRIVER_MEMORY": "512m"},
    )

    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.split("\n")[:3] == ["100 local[2] None None", "True", "None"]
