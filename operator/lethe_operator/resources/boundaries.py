"""The boundaries of namespaces: what an administrator allows the resources of each namespace to use. Pure.

The chart writes its value `boundaries` to a file that tenants cannot change. A missing field sets no limit; an empty list allows
nothing. The entry `default` applies to namespaces without an entry. Entries are not merged.
"""

from collections.abc import Mapping

import yaml
from lethe.contract.kubernetes import Bytes, Cpus
from lethe.contract.run import AllowedOperation, RunBoundary
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel


class InvalidBoundaries(ValueError):
    """The file of boundaries is not valid; the message names the field."""


class _Strict(BaseModel):
    """Rejects unknown fields, because a misspelt field would set no limit."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


class PodLimits(_Strict):
    """The largest size that a pod may have."""

    cpu: Cpus | None = None  # cores; None: no limit
    memory: Bytes | None = None  # bytes; None: no limit
    scratch: Bytes | None = None  # bytes; None: no limit


class ExecutorLimits(PodLimits):
    """The largest size of an executor, and the largest number of them."""

    max: int | None = Field(default=None, ge=0)  # executors of one run; None: no limit


class PodTemplateBoundary(_Strict):
    """What spec.runTemplate.podTemplate may use.

    Entries are patterns, in which * matches any characters. None in any field: the chart's list podTemplate.allowed applies.
    """

    env: tuple[str, ...] | None = None  # names of environment variables
    labels: tuple[str, ...] | None = None  # keys
    annotations: tuple[str, ...] | None = None  # keys
    priority_classes: tuple[str, ...] | None = None  # names of PriorityClasses
    schedulers: tuple[str, ...] | None = None  # names
    tolerations: tuple[str, ...] | None = None  # keys of taints
    config_maps: tuple[str, ...] | None = None  # names of ConfigMaps
    volume_claims: tuple[str, ...] | None = None  # names of PersistentVolumeClaims
    mount_paths: tuple[str, ...] | None = None  # paths below which additional volumes are mounted; no patterns


class AccountMarks(_Strict):
    """Annotations and labels that the cloud's identity service reads, such as eks.amazonaws.com/role-arn."""

    annotations: Mapping[str, str] = Field(default_factory=dict)  # of the ServiceAccount
    labels: Mapping[str, str] = Field(default_factory=dict)  # of the ServiceAccount
    pod_labels: Mapping[str, str] = Field(default_factory=dict)  # of the pods that use the ServiceAccount


class ServiceAccountMarks(_Strict):
    """What the ServiceAccounts of a namespace carry, by the pods that use them."""

    driver: AccountMarks = AccountMarks()
    executor: AccountMarks = AccountMarks()
    committer: AccountMarks = AccountMarks()  # set by the chart, as is the next; the operator does not use them
    inlet: AccountMarks = AccountMarks()


class Boundary(_Strict):
    """The boundary of one namespace."""

    catalogs: tuple[str, ...] | None = None  # names; None: every catalog
    tables: tuple[str, ...] | None = None  # patterns of "namespace.table"; None: every table
    uris: tuple[str, ...] | None = None  # prefixes, compared by whole path segments; None: every URI
    queues: tuple[str, ...] | None = None  # prefixes of queue URLs, compared by whole path segments; None: every queue
    topics: tuple[str, ...] | None = None  # patterns of "cluster/topic" of Kafka; None: every topic
    operations: tuple[AllowedOperation, ...] | None = None  # None: every operation
    driver: PodLimits = PodLimits()
    executors: ExecutorLimits = ExecutorLimits()
    pod_template: PodTemplateBoundary = PodTemplateBoundary()
    service_accounts: ServiceAccountMarks = ServiceAccountMarks()
    # The LocalQueue of Kueue for all runs of the namespace, whatever its Datasets name; None: they may name any.
    queue: str | None = Field(default=None, min_length=1)
    # The Secret of the namespace that has its catalogs; None: the chart's catalogsSecret.name.
    catalogs_secret: str | None = None

    @property
    def of_runs(self) -> RunBoundary | None:
        """The part that each run also checks; None: it sets no limit."""
        part = RunBoundary(catalogs=self.catalogs, tables=self.tables, uris=self.uris, operations=self.operations)
        return None if part == RunBoundary() else part


class Boundaries(_Strict):
    """The content of the file that the chart writes: the namespaces with their own boundary, and a default."""

    default: Boundary = Boundary()
    namespaces: Mapping[str, Boundary] = Field(default_factory=dict)

    def of(self, namespace: str) -> Boundary:
        """The entry of the namespace, or the entry `default` if it has none."""
        return self.namespaces.get(namespace, self.default)


UNLIMITED = Boundaries()


def parse_boundaries(text: str, where: str) -> Boundaries:
    """Parse the file that the chart writes from its value `boundaries`.

    Args:
        where: The file's path, for messages.

    Raises:
        InvalidBoundaries: The message names the file and the field.
    """
    try:
        return Boundaries.model_validate(yaml.safe_load(text) or {})
    except yaml.YAMLError as e:
        raise InvalidBoundaries(
            f"{where} is not YAML: {type(e).__name__}. Correct the chart's value boundaries."
        ) from None
    except ValidationError as e:
        first = e.errors(include_url=False, include_input=False)[0]
        field = ".".join(str(part) for part in ("boundaries", *first["loc"]))
        raise InvalidBoundaries(f"{where}: {field}: {first['msg']}. Correct the chart's value boundaries.") from None
