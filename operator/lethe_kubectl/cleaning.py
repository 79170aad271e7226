"""What a report may contain of resources, events and logs. Pure.

Two rules together. Of a spec, only numbers, booleans, enums and the texts in `KEPT` stay: a new field is left out until somebody
reviews it. In every text that stays, and in logs, what looks like a secret or like personal data is replaced.
"""

import re
from collections.abc import Collection, Mapping
from functools import cache
from typing import Any, Final

from lethe.contract.dataset import DatasetSpec
from lethe.contract.definitions import model_schema
from lethe.contract.restatement import RestatementSpec
from lethe.contract.schema import ApiModel
from lethe.contract.vacuum_policy import VacuumPolicySpec

Document = Mapping[str, Any]

REMOVED: Final = "(removed)"
"""Is written in the place of what was removed."""
KEPT: Final[Mapping[str, frozenset[str]]] = {
    "Dataset": frozenset(
        {
            "batchColumn",
            "buffer.csv.delimiter",
            "buffer.csv.escape",
            "buffer.csv.ignoreColumns.[]",
            "buffer.csv.nullText",
            "buffer.csv.quote",
            "buffer.events.queueUrl",
            "buffer.uri",
            "checks.[].name",
            "checks.[].notNull.[]",
            "checks.[].pattern.column",
            "checks.[].range.column",
            "checks.[].unique.[]",
            "checks.[].values.column",
            "derivedFrom.[].batchColumn",
            "derivedFrom.[].dataset",
            "holds.[].name",
            "holds.[].until",
            "identities.[].column",
            "identities.[].name",
            "identities.[].via.dataset",
            "identities.[].via.from",
            "identities.[].via.to",
            "runTemplate.queue",
            "source.kafka.cluster",
            "source.kafka.topics.[]",
            "table.catalog",
            "table.create.partitionBy.[]",
            "table.create.schema",
            "table.name",
        }
    ),
    "Restatement": frozenset(
        {
            "batchIds.[]",
            "batchIdsFrom.configMapKeyRef.key",
            "batchIdsFrom.configMapKeyRef.name",
            "batchIdsFrom.uri",
            "datasetRef.name",
            "datasetSelector.matchExpressions.[].key",
            "redact.columns.[].column",
            "redact.hashKeyFrom.secretKeyRef.name",
            "replacement.batchId",
            "replacement.keyColumns.[]",
            "replacement.opColumn",
            "replacement.uri",
            "rows.anyOf.[].column",
            "rows.anyOf.[].valuesFrom.secretKeyRef.name",
            "rows.anyOf.[].valuesFrom.uri",
            "rows.anyOf.[].via.dataset",
            "rows.anyOf.[].via.from",
            "rows.anyOf.[].via.to",
            "rows.column",
            "rows.valuesFrom.secretKeyRef.name",
            "rows.valuesFrom.uri",
            "rows.via.dataset",
            "rows.via.from",
            "rows.via.to",
            "selector.reference",
            "subject.anyOf.[].identity",
            "subject.anyOf.[].valuesFrom.secretKeyRef.name",
            "subject.anyOf.[].valuesFrom.uri",
            "subject.identity",
            "subject.valuesFrom.secretKeyRef.name",
            "subject.valuesFrom.uri",
            "undoes.name",
        }
    ),
    "VacuumPolicy": frozenset(
        {
            "datasetSelector.matchExpressions.[].key",
            "retention.column",
            "window.schedule",
            "window.timeZone",
        }
    ),
}
"""The texts of specs that stay, by kind: names of columns and resources, and places. They are scrubbed, too."""
_NUMBERS_LEFT_OUT: Final = frozenset({"min", "max", "allowed"})
"""Fields that hold values of rows, whatever their type."""
_SPECS: Final[Mapping[str, type[ApiModel]]] = {
    "Dataset": DatasetSpec,
    "Restatement": RestatementSpec,
    "VacuumPolicy": VacuumPolicySpec,
}
_METADATA: Final = (
    "name",
    "namespace",
    "uid",
    "generation",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
)
_TELLING: Final = (
    r"pass(?:word|wd)?|secret|token|credential|api[-_]?key|access[-_]?key|private[-_]?key|authorization|sas|sig"
)
# What may begin with any character of a word begins at its first one: else a search would take the square of a word's length.
_PATTERNS: Final = (
    (re.compile(r"-----BEGIN [^-]+-----.*?(?:-----END [^-]+-----|\Z)", re.S), "(removed key)"),
    (re.compile(r"(?<![a-zA-Z0-9+.-])([a-zA-Z0-9+.-]+://)[^\s/@'\"]*@"), r"\1***@"),
    (re.compile(r"((?<![a-zA-Z0-9+.-])[a-zA-Z0-9+.-]+://[^\s?'\"]*)\?[^\s'\"]*"), r"\1?***"),
    (re.compile(r"\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]+(?:\.[A-Za-z0-9_-]*)?"), "(removed token)"),
    (re.compile(r"\b(?i:bearer|basic) [A-Za-z0-9._~+/=-]{6,}"), "(removed token)"),
    (
        re.compile(
            rf"(?i)((?<![\w.-])[\w.-]*(?:{_TELLING})[\w.-]*['\"]?\s*(?:[=:]|=>)\s*)"
            r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&})\]]+)"
        ),
        r"\1***",
    ),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), "(removed key)"),
    (
        re.compile(r"(?<![\w.!#$%&'*+/=?^`{|}~-])[\w.!#$%&'*+/=?^`{|}~-]+(?:@|%40)[\w-]+(?:\.[\w-]+)+"),
        "(removed e-mail)",
    ),
    (re.compile(r"(?<![\w.:/-])\+\d[\d ()/.-]{6,}\d"), "(removed number)"),
)
_RANDOM: Final = re.compile(r"(?<![A-Za-z0-9/+=_.-])[A-Za-z0-9/+=_-]{32,}(?![A-Za-z0-9/+=_.-])")


def cleaned_text(text: str, secrets: Collection[str] = ()) -> str:
    """A text without what looks like a credential, an e-mail address or a telephone number.

    Args:
        text: A message, a log line, or several lines.
        secrets: Known secrets, such as those of catalogs on this machine.
    """
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    for pattern, put in _PATTERNS:
        text = pattern.sub(put, text)
    return _RANDOM.sub(lambda found: "(removed key)" if _is_random(found.group()) else found.group(), text)


def _is_random(word: str) -> bool:
    """Whether a long word looks like a key in base64. Hashes, UUIDs, names and paths do not."""
    kinds = (str.isupper, str.islower, str.isdigit)
    return all(any(kind(c) for c in word) for kind in kinds) and word.count("-") < 4 and word.count("/") < 4


def cleaned_resource(document: Document, secrets: Collection[str] = ()) -> dict[str, Any]:
    """A resource of Lethe: what identifies it, of its spec what `KEPT` has, and its status."""
    kind, metadata = str(document.get("kind") or ""), document.get("metadata") or {}
    return {
        "kind": kind,
        "metadata": _cleaned_metadata(metadata, secrets),
        "spec": _cleaned_spec(document.get("spec") or {}, kind, "", secrets),
        "status": cleaned(document.get("status") or {}, secrets),
    }


def cleaned_pod(pod: Document, secrets: Collection[str] = ()) -> dict[str, Any]:
    """A pod: images, requests and limits, and its status. No command, environment or volume."""
    spec, metadata = pod.get("spec") or {}, pod.get("metadata") or {}
    containers = [
        {name: c[name] for name in ("name", "image", "resources") if name in c} for c in spec.get("containers") or ()
    ]
    status = {k: v for k, v in (pod.get("status") or {}).items() if not k.endswith(("IP", "IPs"))}
    return {
        "kind": "Pod",
        "metadata": _cleaned_metadata(metadata, secrets),
        "spec": {"containers": cleaned(containers, secrets)},
        "status": cleaned(status, secrets),
    }


def cleaned_event(event: Document, secrets: Collection[str] = ()) -> dict[str, Any]:
    """An event: about what, when and how often, its reason, and its message."""
    regarding = event.get("regarding") or event.get("involvedObject") or {}
    series = event.get("series") or {}
    return {
        "regarding": f"{str(regarding.get('kind', '')).lower()}/{regarding.get('name', '')}",
        "time": event.get("eventTime") or event.get("deprecatedLastTimestamp") or event.get("lastTimestamp"),
        "count": series.get("count") or event.get("deprecatedCount") or 1,
        "type": event.get("type"),
        "reason": event.get("reason"),
        "message": cleaned_text(str(event.get("note") or event.get("message") or ""), secrets),
    }


def cleaned(value: Any, secrets: Collection[str] = ()) -> Any:
    """A status: all of it, with each text scrubbed."""
    if isinstance(value, Mapping):
        return {str(k): cleaned(v, secrets) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [cleaned(v, secrets) for v in value]
    return cleaned_text(value, secrets) if isinstance(value, str) else value


def _cleaned_metadata(metadata: Document, secrets: Collection[str]) -> dict[str, Any]:
    labels = {k: v for k, v in (metadata.get("labels") or {}).items() if "lethe.dev/" in k or "kubernetes.io/" in k}
    owners = [f"{o.get('kind')}/{o.get('name')}" for o in metadata.get("ownerReferences") or ()]
    named = {name: metadata[name] for name in _METADATA if name in metadata}
    return {**named, "labels": cleaned(labels, secrets), "owners": owners}


def _cleaned_spec(value: Any, kind: str, path: str, secrets: Collection[str]) -> Any:
    if isinstance(value, Mapping):
        return {
            str(k): REMOVED if k in _NUMBERS_LEFT_OUT and not isinstance(v, Mapping)
            else _cleaned_spec(v, kind, f"{path}.{k}".lstrip("."), secrets)
            for k, v in value.items()
        }  # fmt: skip
    if isinstance(value, list | tuple):
        return [_cleaned_spec(v, kind, f"{path}.[]", secrets) for v in value]
    if not isinstance(value, str):
        return value
    if path in _enums(kind):
        return value
    return cleaned_text(value, secrets) if path in KEPT.get(kind, ()) else REMOVED


@cache
def _enums(kind: str) -> frozenset[str]:
    """The paths of a spec with a closed list of values."""
    model = _SPECS.get(kind)
    return frozenset(_enums_in(model_schema(model), "")) if model is not None else frozenset()


def _enums_in(schema: Mapping[str, Any], path: str) -> list[str]:
    found = [path] if "enum" in schema else []
    for name, part in (schema.get("properties") or {}).items():
        found += _enums_in(part, f"{path}.{name}".lstrip("."))
    return found + (_enums_in(schema["items"], f"{path}.[]") if isinstance(schema.get("items"), Mapping) else [])
