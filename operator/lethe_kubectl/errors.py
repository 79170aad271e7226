"""The API server's errors, each as one line that says what to do. Pure."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lethe.base.errors import InputError, LetheError, TransientError
from lethe.kube import DATASETS, AlreadyExists, Away, Conflict, KubeError, NotFound

VERSION: Final = DATASETS.api.rpartition("/")[2]
_NO_RIGHT: Final = re.compile(r'cannot (\w+) resource "([\w/]+)" in API group "([\w.]*)"')
_UNKNOWN_FIELD: Final = re.compile(r'unknown field "([^"]+)"')


@dataclass(frozen=True)
class ResourcePlace:
    """Where resources are, and how commands name it."""

    name: str
    """For people: context prod, or lethe local in a folder."""
    host: str
    namespace: str
    kubectl: str
    """Kubectl, with the options that lead here."""
    lethe: str
    """The same for lethe, with {} for the command."""

    def run(self, command: str) -> str:
        """A command of `lethe` to copy."""
        return self.lethe.replace("{}", command, 1)


def explained(error: KubeError, place: ResourcePlace, served: Sequence[str] = ()) -> LetheError:
    """The error for the user.

    Args:
        served: The versions of Lethe's API that the server has, if it does not know the path of a request.
    """
    said = error.message.partition(": ")[2]
    if isinstance(error, Away):
        why = said if error.status == 0 else f"{error.status} {error.reason}"
        return TransientError(
            "ClusterAway",
            f"{place.name} ({place.host}) does not answer: {why}. Check that it runs, or choose another with --context or --dir.",
        )
    if error.status == 401:
        return InputError(
            "NotLoggedIn",
            f"{place.name} does not accept the credentials of the kubeconfig. Log in again, then repeat the command.",
        )
    if error.status == 403:
        return _forbidden(said, place)
    if isinstance(error, NotFound):
        return _not_found(error, said, place, served)
    if isinstance(error, AlreadyExists):
        return InputError("AlreadyExists", f"{said}. Choose another name with --name.")
    if isinstance(error, Conflict):
        return TransientError("Conflict", f"{said}. Repeat the command.")
    unknown = _UNKNOWN_FIELD.findall(said)
    if unknown:
        return InputError(
            "OlderChart",
            f"the version of Lethe in {place.name} does not know {', '.join(unknown)}. Nothing was changed. Upgrade the chart, "
            "or leave out the option.",
        )
    return InputError(error.reason, said)


def _forbidden(said: str, place: ResourcePlace) -> LetheError:
    match = _NO_RIGHT.search(said)
    if match is None:
        return InputError("Forbidden", said)
    verb, resource, group = match.groups()
    plural, slash, part = resource.partition("/")
    kind = f"{plural}.{group}" if group else plural
    of_part = f" --subresource={part}" if part else ""
    role = (
        f"lethe-{verb}-{resource.replace('/', '-')} -n {place.namespace} --verb={verb} --resource={kind}{slash}{part}"
    )
    check = f"{place.kubectl} auth can-i {verb} {kind}{of_part} -n {place.namespace}"
    return InputError(
        "Forbidden",
        f"you may not {verb} {kind}{slash}{part} in namespace {place.namespace} of {place.name}. Ask an administrator for this "
        f"right: kubectl create role {role}, and a RoleBinding to you. This checks it: {check}",
    )


def _not_found(error: NotFound, said: str, place: ResourcePlace, served: Sequence[str]) -> LetheError:
    if served and VERSION not in served:
        return InputError(
            "OtherVersion",
            f"{place.name} has lethe.dev/{', '.join(served)}, and this program needs {VERSION}. Install the lethe-lake of the "
            "chart's version, or upgrade the chart.",
        )
    if served and (error.reason == "404" or "requested resource" in said):
        return InputError(
            "OlderChart",
            f"the version of Lethe in {place.name} lacks a kind that this command needs. Upgrade the chart.",
        )
    if error.reason == "404" or "requested resource" in said:
        return InputError(
            "NotInstalled",
            f"Lethe is not installed in {place.name}: it has no kinds of lethe.dev. Install the chart, or choose "
            "another cluster with --context.",
        )
    return InputError("NotFound", f"{said}. This shows what exists: {place.run('status')}")
