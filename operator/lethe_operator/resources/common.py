"""What all resources share: metadata, the base of every spec, errors that name the field. Pure."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

GROUP: Final = "lethe.dev"
VERSION: Final = "v1alpha1"
API_VERSION: Final = f"{GROUP}/{VERSION}"

# Annotations that users set.
PAUSED: Final = "lethe.dev/paused"
VACUUM_NOW: Final = "lethe.dev/vacuum-now"
APPROVE: Final = "lethe.dev/approve"
ACCEPT_HEAD: Final = "lethe.dev/accept-head"

# Labels on everything that Lethe creates.
LABEL_DATASET: Final = "lethe.dev/dataset"
LABEL_DATASET_UID: Final = "lethe.dev/dataset-uid"
LABEL_KIND: Final = "lethe.dev/kind"
LABEL_RUN_ID: Final = "lethe.dev/run-id"
LABEL_ATTEMPT: Final = "lethe.dev/attempt"
# On a pod of a run: `driver` works alone, `scaled-driver` with pods that are `executor`. The chart's NetworkPolicies select by
# it.
LABEL_ROLE: Final = "lethe.dev/role"
# On a ConfigMap, with the value "true": Restatements may read batch ids from it.
LABEL_BATCH_IDS: Final = "lethe.dev/batch-ids"
# On a ServiceAccount: the keys of the annotations and labels that the boundary of the namespace sets, as JSON.
ANNOTATION_MARKS: Final = "lethe.dev/boundary-marks"
# On a Job: whole names, which may be too long for a label, and what a verdict on the Job must be compared with.
ANNOTATION_DATASET: Final = "lethe.dev/dataset"
ANNOTATION_GENERATION: Final = "lethe.dev/dataset-generation"
ANNOTATION_FOR_UID: Final = "lethe.dev/for-uid"
# On a Job: how many attempts of its run had failed before, `<by themselves>/<for what lies outside of them>`. The Jobs of most of
# them are gone.
ANNOTATION_FAILURES: Final = "lethe.dev/failures-before"
# Its value on a run that serves no Restatement but the head of the table.
FOR_HEAD: Final = "head"
# And on one that purges nothing, and only sees how far the erasures of the table have come.
FOR_ERASURES: Final = "erasures"
# How the keys of a Dataset's ConfigMap end; before it stand the first 12 digits of the run id.
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
# Where the values of Erases are mounted into the pod of their run, each under a name of its own.
ERASE_PATH = "/etc/lethe/erase"
DIGEST_KEY_PATH = "/etc/lethe/digest-key"
# The container of a run's pods, and what a pod template may set besides volumes and that container: what is allowed is
# what is copied, so that neither can be forgotten.
CONTAINER = "spark"
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
    """A spec that the CRD's schema should have refused; the message names the first offending field."""


class Spec(BaseModel):
    """Base of everything read from the API: camelCase, frozen, unknown fields tolerated (a newer CRD may have them)."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="ignore")


class Meta(Spec):
    """The part of `metadata` that decisions look at. `generation` 0 is an object without one."""

    name: str
    namespace: str = ""
    uid: str = ""
    generation: int = 0
    resource_version: str = ""
    creation_timestamp: datetime | None = None
    deletion_timestamp: datetime | None = None
    labels: Mapping[str, str] = Field(default_factory=dict)
    annotations: Mapping[str, str] = Field(default_factory=dict)

    @property
    def deleting(self) -> bool:
        return self.deletion_timestamp is not None

    @property
    def full_name(self) -> str:
        return f"{self.namespace}/{self.name}"

    def is_set(self, annotation: str) -> bool:
        """Whether a yes-or-no annotation is set: any value but the usual words for no."""
        return self.annotations.get(annotation, "false").lower() not in ("", "false", "no", "0")


S = TypeVar("S", bound=Spec)


def is_newer(version: str, than: str) -> bool:
    """Versions of one object are numbers in all API servers that count; of others, what comes later is newer."""
    return int(version) > int(than) if version.isdigit() and than.isdigit() else version != than


def parse_meta(body: Mapping[str, Any]) -> Meta:
    return Meta.model_validate(body.get("metadata") or {})


def parse_spec(model: type[S], kind: str, body: Mapping[str, Any]) -> S:
    """Parse `body["spec"]`. Raises: InvalidSpec, naming resource, field and what was expected."""
    try:
        return model.model_validate(body.get("spec") or {})
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in ("spec", *first["loc"]))
        name = (body.get("metadata") or {}).get("name", "")
        raise InvalidSpec(f"{kind} {name}: {field}: {first['msg']}.") from None
