"""What all resources have in common: metadata, parsing, names of labels and annotations, and who watches a namespace. Pure."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeVar

from lethe.contract.schema import ApiModel
from pydantic import Field, ValidationError

# Kueue admits objects with this label, and reserves their resources in this LocalQueue.
LABEL_QUEUE: Final = "kueue.x-k8s.io/queue-name"
LABEL_QUEUED_ALONE: Final = "kueue.x-k8s.io/managed"
ANNOTATION_QUEUED_ALONE: Final = "kueue.x-k8s.io/pod-suspending-parent"
"""With both, Kueue also admits a pod whose owner it has admitted already, as a workload of its own."""


@dataclass(frozen=True)
class Shard:
    """One of the parts into which a release divides its watched namespaces."""

    index: int
    """From 0."""
    count: int
    """Of all shards."""

    def of(self, namespaces: Iterable[str]) -> tuple[str, ...]:
        """The namespaces of this shard. The answer for a namespace depends on its name and the number of shards alone."""
        return tuple(n for n in namespaces if _number(n) % self.count == self.index)


ONLY_SHARD: Final = Shard(0, 1)


def _number(namespace: str) -> int:
    return int.from_bytes(hashlib.sha256(namespace.encode()).digest()[:8])


# Labels on everything that Lethe creates.
LABEL_DATASET: Final = "lethe.dev/dataset"
LABEL_DATASET_UID: Final = "lethe.dev/dataset-uid"
LABEL_KIND: Final = "lethe.dev/kind"
LABEL_RUN_ID: Final = "lethe.dev/run-id"
LABEL_ATTEMPT: Final = "lethe.dev/attempt"
# On a pod of a run: `driver` (without executors), `scaled-driver` (with executors) or `executor`. The chart's NetworkPolicies
# select pods by it.
LABEL_ROLE: Final = "lethe.dev/role"
# On the Restatement of one Dataset: the name of the subject request that made it, unless the name is too long for a label.
LABEL_REQUEST: Final = "lethe.dev/request"
# On a ConfigMap, with the value "true": Restatements may read batch ids from it.
LABEL_BATCH_IDS: Final = "lethe.dev/batch-ids"
# On a ServiceAccount: the keys of the annotations and labels that the namespace's boundary sets, as JSON.
ANNOTATION_MARKS: Final = "lethe.dev/boundary-marks"
# On a Job: the Dataset's name, which may be too long for a label, the Dataset's generation at launch, and what the run serves.
ANNOTATION_DATASET: Final = "lethe.dev/dataset"
ANNOTATION_GENERATION: Final = "lethe.dev/dataset-generation"
ANNOTATION_FOR_UID: Final = "lethe.dev/for-uid"
# On a Job: how many earlier attempts of its run failed, as `<causes in the run>/<causes in the infrastructure>`. Most of their
# Jobs are deleted.
ANNOTATION_FAILURES: Final = "lethe.dev/failures-before"
# On the mailbox of a warm driver: until when it makes way for pods of runs.
ANNOTATION_AWAY_UNTIL: Final = "lethe.dev/away-until"
# Values of ANNOTATION_FOR_UID that are not the UID of a Restatement.
FOR_HEAD: Final = "head"  # the run gives the table's head a ledger
FOR_ERASURES: Final = "erasures"  # the run checks the progress of erasures, and purges nothing
# Endings of the keys of a Dataset's ConfigMap. A key begins with the first 12 digits of the run id.
RUN_KEY: Final = ".run.json"
DISPATCH_KEY: Final = ".dispatch.json"
EXECUTOR_KEY: Final = ".executor.yaml"
PROGRESS_KEY: Final = ".progress.json"
RESULT_KEY: Final = ".result.json"
KEY_PREFIX_LENGTH: Final = 12

MANAGED_LABELS: Final[Mapping[str, str]] = {
    "app.kubernetes.io/name": "lethe",
    "app.kubernetes.io/managed-by": "lethe",
}
RUN_LABELS: Final[Mapping[str, str]] = {**MANAGED_LABELS, "app.kubernetes.io/component": "run"}
# The folder in a run's pod that has the values of Erases and Redacts by records, and keys of hashes, one file each.
ERASE_PATH = "/etc/lethe/erase"
DIGEST_KEY_PATH = "/etc/lethe/digest-key"
# The name of the container in a run's pods.
CONTAINER = "spark"
# The driver's container in the pod of a SparkApplication: Kubeflow's operator finds it by this name.
SPARK_CONTAINER = "spark-kubernetes-driver"
# What a pod template may set besides volumes and the container. The check and the copy use the same list, so they cannot differ.
POD_FIELDS = (
    "nodeSelector",
    "tolerations",
    "affinity",
    "topologySpreadConstraints",
    "priorityClassName",
    "schedulerName",
    "imagePullSecrets",
)


class InvalidSpec(ValueError):
    """A spec that the schema of the CRD should have rejected; the message names the first invalid field."""


class Meta(ApiModel):
    """The part of `metadata` that decisions use."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    """0: the object has none."""
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)

    @property
    def deleting(self) -> bool:
        """Whether a deletion was requested. The object still exists while it has finalizers."""
        return self.deletion_timestamp is not None

    @property
    def full_name(self) -> str:
        """The object as `namespace/name`."""
        return f"{self.namespace}/{self.name}"

    def is_set(self, annotation: str) -> bool:
        """Whether a boolean annotation is true. Every value except "", "false", "no" and "0" is true."""
        return self.annotations.get(annotation, "false").lower() not in ("", "false", "no", "0")


S = TypeVar("S", bound=ApiModel)


def is_newer(version: str, than: str) -> bool:
    """Whether a resourceVersion is newer than another one of the same object.

    Versions that are not numbers have no order: then every other version is newer.
    """
    return int(version) > int(than) if version.isdigit() and than.isdigit() else version != than


def parse_meta(body: Mapping[str, Any]) -> Meta:
    """Read `metadata` of an object of any kind. What it lacks gets its default."""
    return Meta.model_validate(body.get("metadata") or {})


def parse_spec(model: type[S], kind: str, body: Mapping[str, Any]) -> S:
    """Parse `body["spec"]`.

    Raises:
        InvalidSpec: The message names the resource, the field and what was expected.
    """
    try:
        return model.model_validate(body.get("spec") or {})
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in ("spec", *first["loc"]))
        name = (body.get("metadata") or {}).get("name", "")
        raise InvalidSpec(f"{kind} {name}: {field}: {first['msg']}.") from None
