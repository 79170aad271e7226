"""`spec.runTemplate.podTemplate` of a Dataset: the part of a pod's template that its author may set. Pure.

The operator copies what these models describe into pods as it is, and does not parse it.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import ConfigDict, Field

from lethe.contract.kubernetes import Labels
from lethe.contract.schema import PRESERVE_UNKNOWN_FIELDS, ApiModel, Rule, entries, items, keyed_by, length

Name = Annotated[str, length(1, 253)]


class _Described(ApiModel):
    """Base class of models that only describe: their validators are not built, which the import of this module would wait for."""

    model_config = ConfigDict(defer_build=True)


class PodMetadata(_Described):
    """Additional labels and annotations, with keys that the chart allows."""

    labels: Labels = Field(default_factory=dict)
    """Additional labels."""
    annotations: Annotated[Mapping[str, Annotated[str, length(maximum=4096)]], entries(64)] = Field(
        default_factory=dict
    )
    """Additional annotations."""


class Toleration(_Described):
    """One toleration."""

    key: Annotated[str, length(maximum=317)] | None = None
    """The taint's key; empty means all."""
    operator: Literal["Exists", "Equal"] | None = None
    """How key relates to value; Equal when not set."""
    value: Annotated[str, length(maximum=63)] | None = None
    """The taint's value."""
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = None
    """The taint's effect; all when not set."""
    toleration_seconds: int | None = None
    """How many seconds NoExecute is tolerated. If unset, without limit."""


class ImagePullSecret(_Described):
    """One Secret."""

    name: Name
    """Name of the Secret."""


class EmptyDir(_Described):
    """An empty folder."""

    size_limit: Annotated[str, length(maximum=32)] | None = None
    """Limit of its size."""
    medium: Literal["", "Memory"] | None = None
    """The storage medium."""


class ConfigMapVolume(_Described):
    """The keys of an allowed ConfigMap as files."""

    name: Name
    """Name of the ConfigMap."""
    optional: bool | None = None
    """Whether it may be missing."""


class SecretVolume(_Described):
    """The keys of an allowed Secret as files."""

    secret_name: Name
    """Name of the Secret."""
    optional: bool | None = None
    """Whether it may be missing."""


class ClaimVolume(_Described):
    """An allowed claim in the same namespace."""

    claim_name: Name
    """Name of the claim."""
    read_only: bool | None = None
    """Whether it is mounted for reading only."""


class Volume(_Described):
    """One volume of one of four kinds."""

    cel_rules = (
        Rule(
            "(has(self.emptyDir) ? 1 : 0) + (has(self.configMap) ? 1 : 0) + (has(self.secret) ? 1 : 0) "
            "+ (has(self.persistentVolumeClaim) ? 1 : 0) == 1",
            "exactly one of emptyDir, configMap, secret and persistentVolumeClaim is required",
        ),
    )

    name: Annotated[str, length(1, 63)]
    """Name of the volume."""
    empty_dir: EmptyDir | None = None
    config_map: ConfigMapVolume | None = None
    secret: SecretVolume | None = None
    persistent_volume_claim: ClaimVolume | None = None


class KeyRef(_Described):
    """A key of an object."""

    name: Name
    """Name of the object."""
    key: Name
    """The key."""


class EnvSource(_Described):
    """Where its value is."""

    cel_rules = (
        Rule(
            "has(self.secretKeyRef) != has(self.configMapKeyRef)",
            "exactly one of secretKeyRef and configMapKeyRef is required",
        ),
    )

    secret_key_ref: KeyRef | None = None
    """A key of an allowed Secret."""
    config_map_key_ref: KeyRef | None = None
    """A key of an allowed ConfigMap."""


class EnvVar(_Described):
    """One variable."""

    cel_rules = (
        Rule("!(has(self.value) && has(self.valueFrom))", "value and valueFrom exclude one another"),
        Rule(
            "!self.name.matches('^(_?SPARK_|PYSPARK_|PYTHON|PYICEBERG_|LETHE_|POD_|KUBERNETES_)')",
            "Lethe, Spark or Kubernetes set this variable",
        ),
    )

    name: Annotated[str, length(1, 253, pattern="^[A-Za-z_][A-Za-z0-9_]*$")]
    """Its name, one that the chart allows."""
    value: Annotated[str, length(maximum=4096)] | None = None
    """Its value. Not for secrets."""
    value_from: EnvSource | None = None


class VolumeMount(_Described):
    """One mount."""

    name: Annotated[str, length(1, 63)]
    """Name of the volume."""
    mount_path: Annotated[str, length(1, 1024, pattern="^(/[A-Za-z0-9_-][A-Za-z0-9._-]*)+/?$")]
    """The path in the container, below one that the chart allows."""
    sub_path: Annotated[str, length(maximum=1024)] | None = None
    """The path in the volume."""
    read_only: bool | None = None
    """Whether it is mounted for reading only."""


class Container(_Described):
    """The container."""

    name: Literal["spark"]
    """Always spark."""
    env: Annotated[tuple[EnvVar, ...], keyed_by("name", maximum=64)] = ()
    """Additional environment variables."""
    volume_mounts: Annotated[tuple[VolumeMount, ...], keyed_by("mountPath", maximum=32)] = ()
    """Where the additional volumes are mounted."""


class PodSpec(_Described):
    """A part of a pod's spec."""

    node_selector: Labels = Field(default_factory=dict)
    """Labels that a node must have."""
    tolerations: Annotated[tuple[Toleration, ...], items(maximum=64)] = ()
    """Taints of nodes that the pods tolerate, with keys that the chart allows."""
    affinity: Annotated[Mapping[str, Any], PRESERVE_UNKNOWN_FIELDS] = Field(default_factory=dict)
    """Affinity as in a pod's spec; podAffinity and podAntiAffinity without namespaces and namespaceSelector."""
    priority_class_name: Annotated[str, length(maximum=253)] | None = None
    """Priority of the pods, one that the chart allows."""
    scheduler_name: Annotated[str, length(maximum=253)] | None = None
    """The scheduler that places them, one that the chart allows."""
    image_pull_secrets: Annotated[tuple[ImagePullSecret, ...], keyed_by("name", maximum=16)] = ()
    """Secrets of the registry, in the same namespace."""
    volumes: Annotated[tuple[Volume, ...], keyed_by("name", maximum=32)] = ()
    """Additional volumes."""
    containers: Annotated[tuple[Container, ...], keyed_by("name", maximum=1)] = ()
    """Additions to the one container of the pods."""


class PodTemplate(_Described):
    """What else the pods need, for driver and executors alike.

    Only these fields exist: a Dataset's author cannot choose a service account, an image or security settings. What is
    named must be in the chart's values podTemplate.allowedSecrets or podTemplate.allowed.
    """

    metadata: PodMetadata | None = None
    spec: PodSpec | None = None
