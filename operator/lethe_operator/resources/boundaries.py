"""The boundaries of namespaces: what an administrator lets the resources of each namespace touch. Pure.

They come from the chart's value `boundaries`, in a file that tenants cannot write. A field that is absent sets no limit, and an
empty list allows nothing. A namespace without an entry has the entry `default`; one with an entry has that alone.
"""

from collections.abc import Mapping

import yaml
from lethe.contract.run import AllowedOperation, RunBoundary
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from pydantic.alias_generators import to_camel

from lethe_operator.resources.quantity import Bytes, Cpus


class InvalidBoundaries(ValueError):
    """The file of boundaries cannot be used; the message names the field."""


class _Strict(BaseModel):
    """A field that is not known is refused: one that is misspelt would set no limit."""

    model_config = ConfigDict(alias_generator=to_camel, populate_by_name=True, frozen=True, extra="forbid")


class PodLimits(_Strict):
    """The largest pod of its kind."""

    cpu: Cpus | None = None  # cores; None: no limit
    memory: Bytes | None = None  # bytes; None: no limit
    scratch: Bytes | None = None  # bytes; None: no limit


class ExecutorLimits(PodLimits):
    max: int | None = Field(default=None, ge=0)  # executors of one run; None: no limit


class PodTemplateBoundary(_Strict):
    """What spec.runTemplate.podTemplate may name. Entries are patterns, in which * stands for any characters. None in any field:
    the chart's list podTemplate.allowed applies."""

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
    """What the cloud's identity service looks for, such as eks.amazonaws.com/role-arn."""

    annotations: Mapping[str, str] = Field(default_factory=dict)  # of the ServiceAccount
    labels: Mapping[str, str] = Field(default_factory=dict)  # of the ServiceAccount
    pod_labels: Mapping[str, str] = Field(default_factory=dict)  # of the pods that run as it


class ServiceAccountMarks(_Strict):
    driver: AccountMarks = AccountMarks()
    executor: AccountMarks = AccountMarks()
    committer: AccountMarks = AccountMarks()  # set by the chart; the operator does not use them


class Boundary(_Strict):
    """Of one namespace."""

    catalogs: tuple[str, ...] | None = None  # names; None: every catalog
    tables: tuple[str, ...] | None = None  # patterns of "namespace.table"; None: every table
    uris: tuple[str, ...] | None = None  # prefixes, by whole path segments; None: every place
    queues: tuple[str, ...] | None = None  # prefixes of queue URLs, by whole path segments; None: every queue
    operations: tuple[AllowedOperation, ...] | None = None  # None: every operation
    driver: PodLimits = PodLimits()
    executors: ExecutorLimits = ExecutorLimits()
    pod_template: PodTemplateBoundary = PodTemplateBoundary()
    service_accounts: ServiceAccountMarks = ServiceAccountMarks()
    catalogs_secret: str | None = (
        None  # Secret of the namespace with its catalogs; None: the chart's catalogsSecret.name
    )

    @property
    def of_runs(self) -> RunBoundary | None:
        """The part that a run checks again; None: it sets no limit."""
        part = RunBoundary(catalogs=self.catalogs, tables=self.tables, uris=self.uris, operations=self.operations)
        return None if part == RunBoundary() else part


class Boundaries(_Strict):
    default: Boundary = Boundary()
    namespaces: Mapping[str, Boundary] = Field(default_factory=dict)

    def of(self, namespace: str) -> Boundary:
        """Its own entry, or else the default one. The two are never mixed."""
        return self.namespaces.get(namespace, self.default)


UNLIMITED = Boundaries()


def parse_boundaries(text: str, where: str) -> Boundaries:
    """Read the file that the chart makes of its value `boundaries`. Raises: InvalidBoundaries, naming file and field."""
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
