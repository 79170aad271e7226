"""Chooses Lethe's resources among the documents of YAML files. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from lethe_local.schema.definition import Definition

Document = Mapping[str, Any]


@dataclass(frozen=True)
class Manifest:
    """A document that is, or should be, a resource of Lethe."""

    where: str  # the file, and the number of the document
    kind: str
    namespace: str
    name: str  # "": it has none
    document: Document
    definition: Definition | None = None  # None: it is refused
    problem: str = ""  # why it is refused; "": it is not

    @property
    def key(self) -> tuple[str, str, str]:
        return self.kind, self.namespace, self.name


@dataclass(frozen=True)
class Manifests:
    """The documents of all files."""

    manifests: tuple[Manifest, ...]
    config_maps: Mapping[tuple[str, str], Document]  # by namespace and name
    others: int  # documents of other kinds, ConfigMaps included: they are not planned


@dataclass(frozen=True)
class Target:
    """Where the documents are applied."""

    namespace: str  # of documents that name none
    fixed: bool = False  # the command line names it, so documents may name no other
    only: str = ""  # the only namespace that the server has; "": it can have any


def manifests(documents: Iterable[tuple[str, Any]], definitions: Mapping[str, Definition], target: Target) -> Manifests:
    """Sort documents.

    Args:
        documents: Each with where it is.
        definitions: Of Lethe's kinds, by name.
    """
    found: list[Manifest] = []
    config_maps: dict[tuple[str, str], Document] = {}
    seen: dict[tuple[str, str, str], str] = {}
    others = 0
    group = next(iter(definitions.values())).group
    for where, document in _items(documents):
        if not isinstance(document, Mapping) or not str(document.get("apiVersion")).startswith(f"{group}/"):
            others += 1
            if isinstance(document, Mapping) and document.get("kind") == "ConfigMap":
                metadata = _metadata(document)
                config_maps[str(metadata.get("namespace") or target.namespace), str(metadata.get("name"))] = document
            continue
        manifest = _manifest(where, document, definitions, target)
        if manifest.name and manifest.key in seen:
            text = f"{manifest.kind} {manifest.name} is also in {seen[manifest.key]}. Keep one of them."
            manifest = Manifest(where, *manifest.key, document, None, text)
        seen.setdefault(manifest.key, where)
        found.append(manifest)
    return Manifests(tuple(found), config_maps, others)


def _items(documents: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, Any]]:
    """The documents, with the items of lists instead of the lists."""
    for where, document in documents:
        if isinstance(document, Mapping) and document.get("kind") == "List" and document.get("apiVersion") == "v1":
            yield from ((f"{where}, item {n}", item) for n, item in enumerate(document.get("items") or (), 1))
        else:
            yield where, document


def _manifest(where: str, document: Document, definitions: Mapping[str, Definition], target: Target) -> Manifest:
    kind, version = str(document.get("kind")), str(document.get("apiVersion"))
    metadata = _metadata(document)
    namespace, name = str(metadata.get("namespace") or target.namespace), str(metadata.get("name") or "")
    definition = definitions.get(kind)
    problem = ""
    if definition is None:
        problem = f"Lethe has no kind {kind}. Use one of {', '.join(sorted(definitions))}."
    elif definition.api_version != version:
        problem = f"{kind} has the apiVersion {version}. This version of Lethe has {definition.api_version}."
    elif target.fixed and namespace != target.namespace:
        problem = f"metadata.namespace is {namespace}, but the command names the namespace {target.namespace}."
    elif target.only and namespace != target.only:
        problem = f"metadata.namespace is {namespace}. `lethe local` has only the namespace {target.only}."
    return Manifest(where, kind, namespace, name, document, None if problem else definition, problem)


def _metadata(document: Document) -> Document:
    metadata = document.get("metadata")
    return metadata if isinstance(metadata, Mapping) else {}
