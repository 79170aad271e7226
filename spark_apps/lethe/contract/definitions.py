"""The definitions of Lethe's resources for Kubernetes, from their models, printed columns and rules about whole objects. Pure.

`dev/generate.py` writes crds/ from them.
"""

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import AwareDatetime
from pydantic.fields import FieldInfo

from lethe.contract.dataset import DatasetSpec
from lethe.contract.kubernetes import GROUP, VERSION, parse_bytes, written
from lethe.contract.restatement import RestatementSpec
from lethe.contract.schema import ApiModel, Keywords, Required, Rule, Shape, StoredDefault, field_docstrings
from lethe.contract.status import DatasetStatus, RestatementStatus, VacuumPolicyStatus
from lethe.contract.vacuum_policy import VacuumPolicySpec

INT_OR_STRING: Final = "x-kubernetes-int-or-string"
LIST_TYPE: Final = "x-kubernetes-list-type"
# A reader meets the keywords of a schema in this order.
_ORDER: Final = ("type", "format", "enum", "default", "description", "required", "x-kubernetes-validations")
_LAST: Final = ("items", "additionalProperties", "properties")
_TYPES: Final[Mapping[type, Mapping[str, str]]] = {
    str: {"type": "string"},
    int: {"type": "integer", "format": "int64"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
    datetime: {"type": "string", "format": "date-time"},
    AwareDatetime: {"type": "string", "format": "date-time"},
}


@dataclass(frozen=True)
class PrinterColumn:
    """A column of `kubectl get`."""

    name: str
    type: Literal["string", "integer", "date"]
    path: str
    """JSONPath of the value."""
    description: str
    wide: bool = False
    """Shown by `kubectl get -o wide` only."""


@dataclass(frozen=True)
class Resource:
    """A kind of resource."""

    kind: str
    plural: str
    short_name: str
    description: str
    spec: type[ApiModel]
    status: type[ApiModel]
    columns: Sequence[PrinterColumn]
    rules: Sequence[Rule] = ()
    """About its metadata, or about several parts of it."""


def definition(resource: Resource) -> dict[str, Any]:
    """The CustomResourceDefinition of a kind of resource."""
    singular = resource.kind.lower()
    version = {
        "name": VERSION,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in resource.columns],
        "schema": {"openAPIV3Schema": _root(resource)},
    }
    names = {
        "kind": resource.kind,
        "listKind": f"{resource.kind}List",
        "plural": resource.plural,
        "singular": singular,
        "shortNames": [resource.short_name],
        "categories": ["lethe"],
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{resource.plural}.{GROUP}"},
        "spec": {"group": GROUP, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def model_schema(model: type[ApiModel]) -> dict[str, Any]:
    """The structural schema of a model."""
    texts = field_docstrings(model)
    properties = {
        str(field.alias): _ordered({**_field_schema(field), **_description(texts.get(name))})
        for name, field in model.model_fields.items()
    }
    required = [
        str(field.alias)
        for field in model.model_fields.values()
        if field.is_required() or any(isinstance(m, Required) for m in field.metadata)
    ]
    return _ordered(
        {
            "type": "object",
            **_description(inspect.getdoc(model)),
            **({"required": required} if required else {}),
            **_rules(model.cel_rules),
            "properties": properties,
        }
    )


def _root(resource: Resource) -> dict[str, Any]:
    # A new resource has no conditions yet. Without the default, tools that wait for kstatus would report it as ready.
    status = {**model_schema(resource.status), "default": {"observedGeneration": -1}}
    return _ordered(
        {
            "type": "object",
            "description": resource.description,
            "required": ["spec"],
            **_rules(resource.rules),
            "properties": {
                "apiVersion": {
                    "type": "string",
                    "description": f"The version of this schema, {GROUP}/{VERSION}.",
                },
                "kind": {"type": "string", "description": f"{resource.kind}."},
                "metadata": {"type": "object"},
                "spec": model_schema(resource.spec),
                "status": _ordered(status),
            },
        }
    )


def _column(column: PrinterColumn) -> dict[str, Any]:
    found = {"name": column.name, "type": column.type, "jsonPath": column.path, "description": column.description}
    return {**found, "priority": 1} if column.wide else found


def _field_schema(field: FieldInfo) -> dict[str, Any]:
    schema = _type_schema(field.annotation, field.metadata)
    return schema if field.is_required() else {**schema, **_default(field, is_quantity=INT_OR_STRING in schema)}


def _default(field: FieldInfo, is_quantity: bool) -> dict[str, Any]:
    default = field.get_default(call_default_factory=True)
    if isinstance(default, ApiModel):
        default = default.model_dump(mode="json", by_alias=True, exclude_unset=True)
    if isinstance(default, StrEnum):
        default = default.value
    stored = any(isinstance(m, StoredDefault) for m in field.metadata)
    if default is None or (default in ("", (), {}) and not stored):
        return {}
    return {"default": _quantity(default) if is_quantity else default}


def _quantity(size: int) -> str | int:
    """A size as people write it, if that is exact."""
    text = written(size)
    return text if parse_bytes(text) == size else size


def _type_schema(annotation: Any, metadata: Sequence[Any] = ()) -> dict[str, Any]:
    """The schema of a type, with the keywords and rules of its metadata.

    Raises:
        TypeError: Definitions cannot have the type.
    """
    shapes = [m.model for m in metadata if isinstance(m, Shape)]
    schema = model_schema(shapes[0]) if shapes else _bare_schema(annotation)
    for keywords in metadata:
        if isinstance(keywords, Keywords):
            schema |= {name: list(value) if isinstance(value, tuple) else value for name, value in keywords.pairs}
    if INT_OR_STRING in schema:
        schema = {name: value for name, value in schema.items() if name not in ("type", "format")}
    rules = [m for m in metadata if isinstance(m, Rule)]
    known = schema.get("x-kubernetes-validations", [])
    return schema | ({"x-kubernetes-validations": known + _rules(rules)["x-kubernetes-validations"]} if rules else {})


def _bare_schema(annotation: Any) -> dict[str, Any]:
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _type_schema(arguments[0], arguments[1:])
    if origin in (Union, UnionType):
        (given,) = (a for a in arguments if a is not NoneType)
        return _type_schema(given)
    if origin is Literal:
        return {"type": "integer" if isinstance(arguments[0], int) else "string", "enum": list(arguments)}
    if origin is tuple:
        return {"type": "array", LIST_TYPE: "atomic", "items": _type_schema(arguments[0])}
    if origin is Mapping:
        values = {} if arguments[1] is Any else {"additionalProperties": _type_schema(arguments[1])}
        return {"type": "object", **values}
    if isinstance(annotation, type) and issubclass(annotation, ApiModel):
        return model_schema(annotation)
    if isinstance(annotation, type) and issubclass(annotation, StrEnum):
        return {"type": "string", "enum": [member.value for member in annotation]}
    if annotation in _TYPES:
        return dict(_TYPES[annotation])
    raise TypeError(f"{annotation!r} has no schema in a resource definition")


def _rules(rules: Sequence[Rule]) -> dict[str, list[dict[str, str]]]:
    found = [
        {"rule": r.rule, "message": r.message, **({"fieldPath": r.field_path} if r.field_path else {})} for r in rules
    ]
    return {"x-kubernetes-validations": found} if found else {}


def _description(text: str | None) -> dict[str, str]:
    return {"description": " ".join(text.split())} if text else {}


def _ordered(schema: dict[str, Any]) -> dict[str, Any]:
    others = [name for name in schema if name not in (*_ORDER, *_LAST)]
    return {name: schema[name] for name in (*_ORDER[:3], *others, *_ORDER[3:], *_LAST) if name in schema}


def _condition(type_: str, field: str) -> str:
    return f'.status.conditions[?(@.type=="{type_}")].{field}'


_AGE: Final = PrinterColumn("Age", "date", ".metadata.creationTimestamp", "Time since creation.")
_REASON: Final = PrinterColumn(
    "Reason", "string", _condition("Ready", "reason"), "The reason of the condition Ready.", wide=True
)

DATASET: Final = Resource(
    kind="Dataset",
    plural="datasets",
    short_name="dset",
    description=(
        "A Dataset is an Iceberg table together with the buffer where producers put batches for it. Lethe moves the "
        "batches into the table and can take them back. Deleting a Dataset deletes neither the table nor the buffer."
    ),
    spec=DatasetSpec,
    status=DatasetStatus,
    columns=(
        PrinterColumn("Table", "string", ".spec.table.name", "The Iceberg table."),
        PrinterColumn(
            "Ready", "string", _condition("Ready", "status"), "Whether the operator can read the table and the buffer."
        ),
        PrinterColumn("Promoted", "integer", ".status.batches.promoted", "Batches that are part of the table."),
        PrinterColumn("Tombstones", "integer", ".status.tombstones.active", "Active tombstones."),
        PrinterColumn("Buffered", "integer", ".status.buffer.batches", "Complete batches that wait in the buffer."),
        PrinterColumn(
            "Vacuum",
            "string",
            ".status.vacuum.decision",
            "The decision about a vacuum: Due, Later, Running or NeedsApproval.",
        ),
        PrinterColumn("Vacuum reason", "string", ".status.vacuum.reason", "Why, or what it waits for.", wide=True),
        PrinterColumn(
            "On time",
            "string",
            _condition("EvictionOnTime", "status"),
            "Whether bytes are gone by their evictBy; empty when nothing has one.",
            wide=True,
        ),
        _AGE,
        PrinterColumn(
            "Refused", "integer", ".status.batches.refused", "Batches that could not be promoted.", wide=True
        ),
        _REASON,
        PrinterColumn(
            "Lag",
            "integer",
            ".status.source.lag",
            "Messages of the source's topics that are not in the buffer yet.",
            wide=True,
        ),
    ),
    rules=(
        Rule(
            "size(self.metadata.name) <= 63 && !self.metadata.name.matches('[.]|-scaled$')",
            "metadata.name can have at most 63 characters, no dots, and no -scaled at its end, since names of other "
            "objects are derived from it",
        ),
    ),
)
RESTATEMENT: Final = Resource(
    kind="Restatement",
    plural="restatements",
    short_name="rst",
    description=(
        "A Restatement corrects a Dataset once: it replaces batches by a new one, reverts batches, erases records or "
        "undoes an earlier revert. With a subject, it erases the records of a person from several Datasets. It is a "
        "request, not a state: after creation only suspend, cancel and "
        "ttlSecondsAfterFinished can change, and applying the same request again changes nothing."
    ),
    spec=RestatementSpec,
    status=RestatementStatus,
    columns=(
        PrinterColumn(
            "Dataset", "string", ".spec.datasetRef.name", "The Dataset that is restated; empty for a subject."
        ),
        PrinterColumn("Operation", "string", ".spec.operation", "What is done to it."),
        PrinterColumn("Phase", "string", ".status.phase", "How far it is."),
        PrinterColumn("Rows deleted", "integer", ".status.result.rowsDeleted", "Rows that readers no longer see."),
        PrinterColumn("Rows added", "integer", ".status.result.rowsAdded", "Rows of the replacement."),
        PrinterColumn(
            "Rows erased",
            "integer",
            ".status.result.rowsErased",
            "Of an Erase by records, or by the keys of a replacement: rows that were removed from data files.",
        ),
        PrinterColumn(
            "Rows redacted", "integer", ".status.result.rowsRedacted", "Rows whose values a Redact replaced.", wide=True
        ),
        PrinterColumn(
            "Tombstones", "integer", ".status.result.tombstonesAdded", "Tombstones that the commit added.", wide=True
        ),
        PrinterColumn(
            "Erased",
            "string",
            _condition("Erased", "status"),
            "Whether its bytes are verified to be gone; empty if they need not be.",
        ),
        PrinterColumn(
            "Erased reason", "string", _condition("Erased", "reason"), "Why its bytes are not gone yet.", wide=True
        ),
        PrinterColumn(
            "Progress", "string", ".status.progress", "Of the active run, or of the Datasets of a subject.", wide=True
        ),
        PrinterColumn("Due", "string", ".status.erasure.dueTime", "When its bytes must be gone.", wide=True),
        PrinterColumn(
            "Snapshot", "integer", ".status.result.snapshotId", "The Iceberg snapshot that holds it.", wide=True
        ),
        _AGE,
        _REASON,
    ),
    rules=(
        Rule("size(self.metadata.name) <= 253", "metadata.name can have at most 253 characters"),
        Rule(
            "!has(self.spec.undoes) || self.spec.undoes.name != self.metadata.name",
            "undoes must name another Restatement",
            ".spec.undoes.name",
        ),
    ),
)
VACUUM_POLICY: Final = Resource(
    kind="VacuumPolicy",
    plural="vacuumpolicies",
    short_name="vacpol",
    description=(
        "A VacuumPolicy says when the rows that tombstones hide are purged from the data files of the Datasets that "
        "it selects. If several policies select a Dataset, the most specific one applies, and among equally specific "
        "ones the oldest."
    ),
    spec=VacuumPolicySpec,
    status=VacuumPolicyStatus,
    columns=(
        PrinterColumn("Ready", "string", _condition("Ready", "status"), "Whether the policy is in force."),
        PrinterColumn(
            "Threshold", "integer", ".spec.triggers.activeTombstones", "Active tombstones that make a vacuum due."
        ),
        PrinterColumn("Datasets", "integer", ".status.datasetsCount", "Datasets that the policy applies to."),
        PrinterColumn(
            "Vacuum",
            "string",
            ".status.datasets[0].decision",
            "The decision about the Dataset that needs attention first: NeedsApproval, Due, Running or Later.",
        ),
        PrinterColumn("Vacuum reason", "string", ".status.datasets[0].reason", "Why, or what it waits for.", wide=True),
        PrinterColumn("Last run", "date", ".status.lastRunTime", "When a vacuum under this policy ended last."),
        _AGE,
        PrinterColumn("Approval", "string", ".spec.approval", "Whether a vacuum waits for an approval.", wide=True),
        PrinterColumn("Next window", "string", ".status.nextWindowTime", "When its window opens next.", wide=True),
        _REASON,
    ),
)
RESOURCES: Final = (DATASET, RESTATEMENT, VACUUM_POLICY)
