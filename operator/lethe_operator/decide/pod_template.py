"""What a Dataset's author may set on the pods of runs: an allow-list, since pods are made with the operator's rights. Pure.

Whoever may create a Dataset must not thereby mount any Secret, borrow any ServiceAccount or leave the sandbox. The CRD's
schema says the same; this holds when an older CRD is installed.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import Any, Final

from lethe_operator.resources.common import CONTAINER, POD_FIELDS

_SPEC_FIELDS: Final = frozenset({*POD_FIELDS, "volumes", "containers"})
_VOLUME_FIELDS: Final = frozenset({"name", "emptyDir", "configMap", "secret", "persistentVolumeClaim"})
_CONTAINER_FIELDS: Final = frozenset({"name", "env", "volumeMounts"})
_ENV_SOURCES: Final = frozenset({"secretKeyRef", "configMapKeyRef"})
# What Lethe sets itself: another value would break the run contract or its confinement.
_OWN_ENV: Final = frozenset(
    {"POD_NAME", "POD_IP", "POD_NAMESPACE", "PYICEBERG_HOME", "SPARK_LOCAL_DIRS", "PYSPARK_SUBMIT_ARGS", "PYTHONPATH"}
)
_OWN_PATHS: Final = ("/etc/lethe", "/tmp", "/scratch", "/opt", "/usr", "/bin", "/lib", "/proc", "/sys", "/dev")
_OWN_VOLUMES: Final = frozenset({"run", "catalogs", "tmp", "scratch"})


def violations(template: Mapping[str, Any], allowed_secrets: Collection[str]) -> tuple[str, ...]:
    """What the template may not say, each with the path of its field; empty when all is allowed.

    Args:
        template: `spec.runTemplate.podTemplate` as the user wrote it.
        allowed_secrets: Names of the Secrets that pods may refer to.
    """
    return tuple(_template(template, allowed_secrets))


def _template(template: Mapping[str, Any], secrets: Collection[str]) -> Iterator[str]:
    yield from _unknown(template, {"metadata", "spec"}, "")
    yield from _unknown(template.get("metadata") or {}, {"labels", "annotations"}, "metadata.")
    spec = template.get("spec") or {}
    yield from _unknown(spec, _SPEC_FIELDS, "spec.")
    for i, secret in enumerate(spec.get("imagePullSecrets") or ()):
        yield from _secret(secret.get("name"), secrets, f"spec.imagePullSecrets[{i}].name")
    for i, volume in enumerate(spec.get("volumes") or ()):
        yield from _volume(volume, secrets, f"spec.volumes[{i}].")
    for i, container in enumerate(spec.get("containers") or ()):
        path = f"spec.containers[{i}]."
        if container.get("name") != CONTAINER:
            yield f"{path}name is {container.get('name')!r}, the only container is {CONTAINER!r}"
        yield from _unknown(container, _CONTAINER_FIELDS, path)
        for j, env in enumerate(container.get("env") or ()):
            yield from _env(env, secrets, f"{path}env[{j}].")
        for j, mount in enumerate(container.get("volumeMounts") or ()):
            yield from _mount(mount, f"{path}volumeMounts[{j}].")


def _unknown(fields: Mapping[str, Any], allowed: Collection[str], path: str) -> Iterator[str]:
    for name in sorted(set(fields) - set(allowed)):
        yield f"{path}{name} may not be set"


def _secret(name: Any, allowed: Collection[str], path: str) -> Iterator[str]:
    if name not in allowed:
        yield f"{path} names the Secret {name!r}, which is not on the chart's list podTemplateAllowedSecrets"


def _volume(volume: Mapping[str, Any], secrets: Collection[str], path: str) -> Iterator[str]:
    yield from _unknown(volume, _VOLUME_FIELDS, path)
    if volume.get("name") in _OWN_VOLUMES:
        yield f"{path}name {volume['name']!r} is one of Lethe's own volumes"
    if "secret" in volume:
        yield from _secret((volume["secret"] or {}).get("secretName"), secrets, f"{path}secret.secretName")


def _env(env: Mapping[str, Any], secrets: Collection[str], path: str) -> Iterator[str]:
    name = str(env.get("name", ""))
    if name in _OWN_ENV or name.startswith(("LETHE_", "SPARK_", "LD_", "JAVA_", "PYTHON")):
        yield f"{path}name {name!r} is set by Lethe"
    source = env.get("valueFrom") or {}
    yield from _unknown(source, _ENV_SOURCES, f"{path}valueFrom.")
    if "secretKeyRef" in source:
        yield from _secret(source["secretKeyRef"].get("name"), secrets, f"{path}valueFrom.secretKeyRef.name")


def _mount(mount: Mapping[str, Any], path: str) -> Iterator[str]:
    yield from _unknown(mount, {"name", "mountPath", "subPath", "readOnly"}, path)
    where = "/" + str(mount.get("mountPath", "")).strip("/")
    if where == "/" or ".." in where.split("/") or any(where == p or where.startswith(p + "/") for p in _OWN_PATHS):
        yield f"{path}mountPath {mount.get('mountPath')!r} would hide a folder that the run needs"
    if mount.get("name") in _OWN_VOLUMES:
        yield f"{path}name {mount['name']!r} is one of Lethe's own volumes"
