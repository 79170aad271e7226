"""What a namespace may request, and what a Dataset's author may set on the pods of runs. Pure.

The operator reads, lists and starts nothing outside the boundary of a namespace: authors of Datasets must not use the operator's
credentials to reach what the boundary denies them.

Pods are created with the operator's rights and read the catalogs' credentials, so there is an allow-list for everything: fields,
names of environment variables, keys of labels and annotations, Secrets, ConfigMaps, claims, taints, priorities, paths. The right
to create a Dataset must not include running one's own code, mounting any Secret, using any ServiceAccount or leaving the
sandbox. The CRD's schema enforces a part of this; these checks also hold with an older CRD.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lethe.base.errors import Verdict
from lethe.base.names import matches_any
from lethe.contract.dataset import ExecutorsSpec, PodSize
from lethe.contract.kubernetes import written
from lethe.contract.run import AllowedOperation, RunBoundary
from lethe.contract.settings import Deletes
from lethe.guards.boundary import (
    Outside,
    outside_names,
    outside_operation,
    outside_prefixes,
    outside_settings,
    outside_table,
    outside_topics,
    outside_uri,
    outside_vacuum,
)

from lethe_operator.reasons import Reason
from lethe_operator.resources.boundaries import Boundary, ExecutorLimits, PodLimits
from lethe_operator.resources.common import CONTAINER, POD_FIELDS
from lethe_operator.resources.dataset import Dataset
from lethe_operator.resources.observed import TableView
from lethe_operator.resources.restatement import Restatement
from lethe_operator.settings import PodTemplateAllowed


def of_dataset(dataset: Dataset, boundary: Boundary) -> Verdict | None:
    """A message about the first field of a Dataset's spec that is outside; None: nothing is."""
    spec, limits = dataset.spec, _of_runs(boundary)
    outside = outside_names(limits, spec.table.catalog, spec.table.name)
    outside = outside or outside_uri(limits, "spec.buffer.uri", spec.buffer.uri)
    if outside is None and spec.buffer.events is not None:
        url = spec.buffer.events.queue_url
        outside = outside_prefixes(boundary.queues, "spec.buffer.events.queueUrl", url, "queues")
    kafka = spec.source.kafka
    if outside is None and kafka is not None:
        outside = outside_topics(boundary.topics, kafka.cluster, kafka.topics)
    # With Auto, runs of a namespace that may not write native deletes write none.
    deletes = None if spec.deletes is Deletes.AUTO else spec.deletes
    outside = outside or outside_settings(limits, spec.consolidation.mode, deletes, spec.table.adopt, spec.table.create)
    return _of_dataset(dataset, outside or next(_sizes(dataset, boundary), None))


def of_table(dataset: Dataset, view: TableView, boundary: Boundary) -> Verdict | None:
    """A message if the location of an existing table is outside."""
    return _of_dataset(dataset, outside_table(_of_runs(boundary), view.location, view.write_paths))


def of_restatement(restatement: Restatement, boundary: Boundary) -> Verdict | None:
    """A message about the first part of a spec that is outside: operation, replacement or list; None: nothing is."""
    limits, spec = _of_runs(boundary), restatement.spec
    outside = outside_operation(limits, "spec.operation", AllowedOperation.of(spec.operation))
    if outside is None and spec.replacement is not None:
        outside = outside_uri(limits, "spec.replacement.uri", spec.replacement.uri)
    if outside is None and restatement.list_uri:
        outside = outside_uri(limits, "spec.batchIdsFrom.uri", restatement.list_uri)
    for field, condition in spec.rows.by_field.items() if spec.rows is not None else ():
        if outside is None and condition.values_from.uri:
            outside = outside_uri(limits, f"{field}.valuesFrom.uri", condition.values_from.uri)
    meta = restatement.meta
    return _verdict(f"Restatement {meta.name}", meta.namespace, outside)


def of_vacuum(dataset: Dataset, boundary: Boundary, retains: bool) -> Verdict | None:
    """A message if the boundary does not allow vacuums, or not such a one.

    Args:
        retains: Whether its policy removes rows for their age.
    """
    return _of_dataset(dataset, outside_vacuum(_of_runs(boundary), retains))


def _of_runs(boundary: Boundary) -> RunBoundary:
    return boundary.of_runs or RunBoundary()


def _of_dataset(dataset: Dataset, outside: Outside | None) -> Verdict | None:
    return _verdict(f"Dataset {dataset.meta.name}", dataset.meta.namespace, outside)


def _verdict(resource: str, namespace: str, outside: Outside | None) -> Verdict | None:
    if outside is None:
        return None
    return Verdict(Reason.OUTSIDE_BOUNDARY, f"{resource}: {outside.message(namespace)}")


def _sizes(dataset: Dataset, boundary: Boundary) -> Iterator[Outside]:
    """Sizes that the Dataset itself sets above the boundary. Defaults of the chart are reduced instead."""
    wanted = dataset.spec.run_template
    yield from _pod("driver", wanted.driver, boundary.driver)
    yield from _pod("executors", wanted.executors, boundary.executors)
    yield from _count(wanted.executors, boundary.executors)


def _pod(name: str, wanted: PodSize, limit: PodLimits) -> Iterator[Outside]:
    for field in ("memory", "scratch"):
        size, most = getattr(wanted, field), getattr(limit, field)
        if size is not None and most is not None and size > most:
            where = f"{name}.{field}"
            yield Outside(f"spec.runTemplate.{where}", written(size), where, f"at most {written(most)}")
    if wanted.cpu is not None and limit.cpu is not None and wanted.cpu > limit.cpu:
        yield Outside(f"spec.runTemplate.{name}.cpu", f"{wanted.cpu:g}", f"{name}.cpu", f"at most {limit.cpu:g}")


def _count(wanted: ExecutorsSpec, limit: ExecutorLimits) -> Iterator[Outside]:
    if limit.max is None:
        return
    for field in ("min", "max"):
        number = getattr(wanted, field)
        if number is not None and number > limit.max:
            yield Outside(f"spec.runTemplate.executors.{field}", str(number), "executors.max", f"at most {limit.max}")


_SPEC_FIELDS: Final = frozenset({*POD_FIELDS, "volumes", "containers"})
_VOLUME_FIELDS: Final = frozenset({"name", "emptyDir", "configMap", "secret", "persistentVolumeClaim"})
_CONTAINER_FIELDS: Final = frozenset({"name", "env", "volumeMounts"})
_ENV_SOURCES: Final = frozenset({"secretKeyRef", "configMapKeyRef"})
_MOUNT_FIELDS: Final = frozenset({"name", "mountPath", "subPath", "readOnly"})
# A term of podAffinity or podAntiAffinity. Without namespaces and namespaceSelector it selects only pods of its own namespace. An
# anti-affinity against all pods would keep every other tenant off the node.
_POD_TERM_FIELDS: Final = frozenset({"labelSelector", "topologyKey", "matchLabelKeys", "mismatchLabelKeys"})
_AFFINITY_LISTS: Final = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
# Lethe, Spark and Kubernetes set these themselves. No list in the chart's values can allow them.
_OWN_ENV: Final = (
    "POD_*", "LETHE_*", "SPARK_*", "_SPARK_*", "PYSPARK_*", "PYICEBERG_*", "PYTHON*", "KUBERNETES_*",
)  # fmt: skip
_OWN_KEYS: Final = (
    "lethe.dev/*", "*.lethe.dev/*", "spark-*", "job-name", "controller-uid", "app.kubernetes.io/*", "batch.kubernetes.io/*",
    "sparkoperator.k8s.io/*",
    "*.security.alpha.kubernetes.io/*", "*.security.beta.kubernetes.io/*",
)  # fmt: skip
_OWN_VOLUMES: Final = frozenset(
    {"run", "catalogs", "tmp", "scratch", "spark-local-dir-1", "erase", "digest-key", "rpc"}
)


@dataclass(frozen=True)
class _Lists:
    """The chart's lists."""

    allowed: PodTemplateAllowed
    secrets: Collection[str]
    """Names of the Secrets that pods may refer to."""

    def names(self, value: Any, field: str, path: str, what: str) -> Iterator[str]:
        """A violation if the list does not have the name at `path`."""
        patterns: Sequence[str] = getattr(self.allowed, field)
        if not isinstance(value, str) or not matches_any(patterns, value):
            listed = ", ".join(patterns) or "empty"
            name = PodTemplateAllowed.model_fields[field].alias or field
            yield f"{path} names the {what} {value!r}, which is not on the list podTemplate.allowed.{name} ({listed})"

    def secret(self, value: Any, path: str) -> Iterator[str]:
        if value not in self.secrets:
            yield f"{path} names the Secret {value!r}, which is not on the chart's list podTemplate.allowedSecrets"


def violations(
    template: Mapping[str, Any], allowed: PodTemplateAllowed, allowed_secrets: Collection[str]
) -> tuple[str, ...]:
    """What the template sets and may not, each with the path of its field; empty: all is allowed.

    Args:
        template: `spec.runTemplate.podTemplate` as the user wrote it.
        allowed: What its namespace may set.
        allowed_secrets: Names of the Secrets that pods may refer to.
    """
    return tuple(_template(template, _Lists(allowed, allowed_secrets)))


def _template(template: Mapping[str, Any], lists: _Lists) -> Iterator[str]:
    yield from _unknown(template, {"metadata", "spec"}, "")
    metadata = template.get("metadata") or {}
    yield from _unknown(metadata, {"labels", "annotations"}, "metadata.")
    for key in metadata.get("labels") or ():
        yield from _key(key, lists, "labels", "label")
    for key in metadata.get("annotations") or ():
        yield from _key(key, lists, "annotations", "annotation")
    spec = template.get("spec") or {}
    yield from _unknown(spec, _SPEC_FIELDS, "spec.")
    yield from _placement(spec, lists)
    for i, secret in enumerate(spec.get("imagePullSecrets") or ()):
        yield from lists.secret(secret.get("name"), f"spec.imagePullSecrets[{i}].name")
    for i, volume in enumerate(spec.get("volumes") or ()):
        yield from _volume(volume, lists, f"spec.volumes[{i}].")
    for i, container in enumerate(spec.get("containers") or ()):
        yield from _container(container, lists, f"spec.containers[{i}].")


def _key(key: str, lists: _Lists, field: str, what: str) -> Iterator[str]:
    path = f"metadata.{field}[{key!r}]"
    if matches_any(_OWN_KEYS, key):
        yield f"{path} is reserved for Lethe, Spark or Kubernetes"
    else:
        yield from lists.names(key, field, path, what)


def _placement(spec: Mapping[str, Any], lists: _Lists) -> Iterator[str]:
    """Which nodes: fields that narrow the choice are free; those that widen it or push other pods away need the lists."""
    if "priorityClassName" in spec:
        yield from lists.names(spec["priorityClassName"], "priority_classes", "spec.priorityClassName", "PriorityClass")
    if "schedulerName" in spec:
        yield from lists.names(spec["schedulerName"], "schedulers", "spec.schedulerName", "scheduler")
    for i, toleration in enumerate(spec.get("tolerations") or ()):
        path, key = f"spec.tolerations[{i}].key", toleration.get("key")
        if key:
            yield from lists.names(key, "tolerations", path, "taint")
        elif "*" not in lists.allowed.tolerations:
            yield f"{path} is empty, which tolerates every taint; podTemplate.allowed.tolerations has no entry '*'"
    affinity = spec.get("affinity") or {}
    yield from _unknown(affinity, {"nodeAffinity", "podAffinity", "podAntiAffinity"}, "spec.affinity.")
    for kind in ("podAffinity", "podAntiAffinity"):
        chosen = affinity.get(kind) or {}
        yield from _unknown(chosen, _AFFINITY_LISTS, f"spec.affinity.{kind}.")
        for field in _AFFINITY_LISTS:
            for i, entry in enumerate(chosen.get(field) or ()):
                term = entry.get("podAffinityTerm") or {} if field.startswith("preferred") else entry
                yield from _unknown(term, _POD_TERM_FIELDS, f"spec.affinity.{kind}.{field}[{i}].")


def _container(container: Mapping[str, Any], lists: _Lists, path: str) -> Iterator[str]:
    if container.get("name") != CONTAINER:
        yield f"{path}name is {container.get('name')!r}, the only container is {CONTAINER!r}"
    yield from _unknown(container, _CONTAINER_FIELDS, path)
    for j, env in enumerate(container.get("env") or ()):
        yield from _env(env, lists, f"{path}env[{j}].")
    for j, mount in enumerate(container.get("volumeMounts") or ()):
        yield from _mount(mount, lists, f"{path}volumeMounts[{j}].")


def _volume(volume: Mapping[str, Any], lists: _Lists, path: str) -> Iterator[str]:
    yield from _unknown(volume, _VOLUME_FIELDS, path)
    if volume.get("name") in _OWN_VOLUMES:
        yield f"{path}name {volume['name']!r} is one of Lethe's own volumes"
    if "secret" in volume:
        yield from lists.secret((volume["secret"] or {}).get("secretName"), f"{path}secret.secretName")
    if "configMap" in volume:
        name = (volume["configMap"] or {}).get("name")
        yield from lists.names(name, "config_maps", f"{path}configMap.name", "ConfigMap")
    if "persistentVolumeClaim" in volume:
        name = (volume["persistentVolumeClaim"] or {}).get("claimName")
        yield from lists.names(name, "volume_claims", f"{path}persistentVolumeClaim.claimName", "volume claim")


def _env(env: Mapping[str, Any], lists: _Lists, path: str) -> Iterator[str]:
    yield from _unknown(env, {"name", "value", "valueFrom"}, path)
    name = str(env.get("name", ""))
    if matches_any(_OWN_ENV, name):
        yield f"{path}name {name!r} is set by Lethe, Spark or Kubernetes"
    else:
        yield from lists.names(name, "env", f"{path}name", "environment variable")
    source = env.get("valueFrom") or {}
    yield from _unknown(source, _ENV_SOURCES, f"{path}valueFrom.")
    if "secretKeyRef" in source:
        yield from lists.secret(source["secretKeyRef"].get("name"), f"{path}valueFrom.secretKeyRef.name")
    if "configMapKeyRef" in source:
        name = source["configMapKeyRef"].get("name")
        yield from lists.names(name, "config_maps", f"{path}valueFrom.configMapKeyRef.name", "ConfigMap")


def _mount(mount: Mapping[str, Any], lists: _Lists, path: str) -> Iterator[str]:
    yield from _unknown(mount, _MOUNT_FIELDS, path)
    where = str(mount.get("mountPath", ""))
    segments = [s for s in where.split("/") if s]
    allowed = [[s for s in p.split("/") if s] for p in lists.allowed.mount_paths]
    below = any(segments[: len(a)] == a for a in allowed if a)
    if not where.startswith("/") or {".", ".."} & set(segments) or not below:
        listed = ", ".join(lists.allowed.mount_paths) or "empty"
        yield f"{path}mountPath {where!r} is not below a path of the list podTemplate.allowed.mountPaths ({listed})"
    if mount.get("name") in _OWN_VOLUMES:
        yield f"{path}name {mount['name']!r} is one of Lethe's own volumes"


def _unknown(fields: Mapping[str, Any], allowed: Collection[str], path: str) -> Iterator[str]:
    for name in sorted(set(fields) - set(allowed)):
        yield f"{path}{name} may not be set"
