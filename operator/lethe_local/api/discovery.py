"""What the API says about itself: groups, versions and kinds, for kopf and kubectl. Pure."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

from lethe_local.api.kinds import Kind

VERSION = {"major": "1", "minor": "36", "gitVersion": "v1.36.0-lethe-local", "platform": "local"}
_OPENAPI: Final = "/openapi/v3"
_VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]


def discovered(path: str, kinds: Iterable[Kind]) -> Mapping[str, Any] | None:
    """The answer to a request for discovery; None: the path is another one."""
    every = tuple(kinds)
    if path == "/version":
        return VERSION
    if path == "/api":
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if path == "/apis":
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": _groups(every)}
    if path == _OPENAPI:
        return {"paths": {k.resource.api[1:]: {"serverRelativeURL": f"{_OPENAPI}{k.resource.api}"} for k in every}}
    if path.startswith(_OPENAPI):
        return _openapi([k for k in every if k.resource.api == path.removeprefix(_OPENAPI)])
    here = [k for k in every if k.resource.api == path]
    if not here:
        return None
    resources = [r for k in here for r in _resources(k)]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": here[0].api_version, "resources": resources}


def _openapi(kinds: Iterable[Kind]) -> dict[str, Any]:
    """Only what kubectl asks before it applies: whether the server checks the fields of an object itself."""
    checks = [{"name": "fieldValidation", "in": "query", "schema": {"type": "string"}}]
    paths = {}
    for k in kinds:
        group, _, version = k.api_version.rpartition("/")
        of = {"group": group, "version": version, "kind": k.resource.name}
        path = f"{k.resource.api}/namespaces/{{namespace}}/{k.resource.plural}/{{name}}"
        paths[path] = {"patch": {"parameters": checks, "responses": {}, "x-kubernetes-group-version-kind": of}}
    return {"openapi": "3.0.0", "info": {"title": "lethe local", "version": VERSION["gitVersion"]}, "paths": paths}


def _groups(kinds: Iterable[Kind]) -> list[dict[str, Any]]:
    versions = dict.fromkeys(k.api_version for k in kinds if "/" in k.api_version)
    found = []
    for group_version in versions:
        group, _, version = group_version.partition("/")
        named = {"groupVersion": group_version, "version": version}
        found.append({"name": group, "versions": [named], "preferredVersion": named})
    return found


def _resources(kind: Kind) -> list[dict[str, Any]]:
    name = kind.resource.plural
    short = list(kind.definition.short_names) if kind.definition else []
    of_all = {"namespaced": kind.namespaced, "kind": kind.resource.name}
    found = [{"name": name, "singularName": kind.resource.name.lower(), "verbs": _VERBS, "shortNames": short, **of_all}]
    if kind.definition is not None:
        found.append({"name": f"{name}/status", "singularName": "", "verbs": ["get", "patch", "update"], **of_all})
    return found
