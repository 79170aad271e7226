"""The kinds of objects that launch the driver of a run. Pure."""

from enum import StrEnum
from typing import Final

# Kueue admits objects with this label, and reserves their resources in this LocalQueue.
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"


class Launcher(StrEnum):
    """The kind of the object that launches the driver of a run."""

    JOB = "Job"
    SPARK_APPLICATION = "SparkApplication"  # of the Kubeflow Spark operator
