"""Make the bundle for the Operator Lifecycle Manager (OLM) from the chart and crds/: python -m dev.distribution.olm FOLDER

FOLDER gets the bundle as a folder, as an archive of its image, and the objects that each watched namespace needs besides:
olm-bundle-VERSION/, olm-bundle-VERSION.tar, lethe-olm-namespace-VERSION.yaml. docs/install-olm.md says how they are used.
"""

import base64
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lethe.contract.definitions import RESOURCES

from dev import release
from dev.distribution import listing, oci

Document = dict[str, Any]

VALUES = listing.ROOT / "dev/distribution/olm-values.yaml"
ICON = listing.ROOT / "operator/lethe_gateway/console/static/icon.svg"
PACKAGE = "lethe"
CHANNEL = "stable-v0"
# The namespaces of the rendered chart. The operator's is replaced: OLM installs wherever the user says.
OPERATOR_NAMESPACE, WATCHED_NAMESPACE = "lethe-system", "watched"
OPERATOR_ACCOUNT = "lethe-operator"
ANNOTATIONS = {
    "operators.operatorframework.io.bundle.mediatype.v1": "registry+v1",
    "operators.operatorframework.io.bundle.manifests.v1": "manifests/",
    "operators.operatorframework.io.bundle.metadata.v1": "metadata/",
    "operators.operatorframework.io.bundle.package.v1": PACKAGE,
    "operators.operatorframework.io.bundle.channels.v1": CHANNEL,
    "operators.operatorframework.io.bundle.channel.default.v1": CHANNEL,
}
# The operator refuses to watch its own namespace, and needs the names of those that it watches.
INSTALL_MODES = {"OwnNamespace": False, "SingleNamespace": True, "MultiNamespace": True, "AllNamespaces": False}
# The kinds of objects that a bundle may have beside its manifest.
BESIDE = ("ConfigMap", "PodDisruptionBudget", "NetworkPolicy")
# OLM makes the ServiceAccount and its bindings. The operator creates its Lease if there is none.
MADE_BY_OLM = ("ServiceAccount", "RoleBinding", "Lease")
DESCRIPTION = """\
Lethe takes batches of files into Apache Iceberg tables, once each, and can take them back: it reverts, replays and
erases batches and rows by declarative resources, and verifies that erased bytes are gone.

Before you create a Dataset, create [the Secrets and the objects that each watched namespace needs]({docs}). The
operator watches the target namespaces of its OperatorGroup, which cannot contain the operator's own one.
"""


@dataclass
class Parts:
    """The objects of the chart, by what OLM does with them."""

    deployments: list[Document] = field(default_factory=list)
    rules: list[Document] = field(default_factory=list)
    """Of the operator's ServiceAccount. OLM grants them in the operator's namespace and in each watched one."""
    beside: list[Document] = field(default_factory=list)
    """Files of the bundle."""
    in_namespaces: list[Document] = field(default_factory=list)
    """What OLM cannot create in the watched namespaces."""


def sort_out(documents: Iterable[Document]) -> Parts:
    """Divide the objects of the chart.

    Raises:
        SystemExit: There is an object that is not known to work with OLM: change olm-values.yaml or this module.
    """
    documents = list(documents)
    granted = {
        (_namespace(d), d["roleRef"]["name"])
        for d in documents
        if d["kind"] == "RoleBinding" and [s["name"] for s in d["subjects"]] == [OPERATOR_ACCOUNT]
    }
    parts = Parts()
    for document in documents:
        kind, name, namespace = document["kind"], document["metadata"]["name"], _namespace(document)
        if kind == "Role" and (namespace, name) in granted:
            parts.rules += [rule for rule in document["rules"] if rule not in parts.rules]
        elif kind in MADE_BY_OLM:
            continue
        elif namespace == WATCHED_NAMESPACE:
            parts.in_namespaces.append(_anywhere(document))
        elif kind == "Deployment":
            parts.deployments.append(document)
        elif kind in BESIDE:
            parts.beside.append(_anywhere(document))
        else:
            raise SystemExit(f"OLM cannot install the chart's {kind} {name}: change {VALUES.name} or olm.py")
    return parts


def _namespace(document: Document) -> str:
    return str(document["metadata"].get("namespace", ""))


def _anywhere(document: Document) -> Document:
    """The object without a namespace and without the labels of Helm."""
    metadata = {k: v for k, v in document["metadata"].items() if k != "namespace"}
    metadata["labels"] = _labels(metadata.get("labels", {}))
    return {**document, "metadata": metadata}


def _labels(labels: dict[str, str]) -> dict[str, str]:
    return {k: v for k, v in labels.items() if k not in ("helm.sh/chart", "app.kubernetes.io/managed-by")}


def deployment_spec(deployment: Document) -> Document:
    """The Deployment's spec, with the names of namespaces that only OLM knows."""
    spec: Document = deployment["spec"]
    template = spec["template"]
    template["metadata"]["labels"] = _labels(template["metadata"]["labels"])
    template["metadata"].pop("annotations", None)  # checksums of the chart's files
    for container in template["spec"]["containers"]:
        own = {"name": "POD_NAMESPACE", "valueFrom": {"fieldRef": {"fieldPath": "metadata.namespace"}}}
        container["env"] = [own, *(_variable(variable) for variable in container["env"])]
    return spec


def _variable(variable: Document) -> Document:
    value = variable.get("value", "")
    if variable["name"] == "LETHE_WATCH_NAMESPACES":
        targets = {"fieldRef": {"fieldPath": "metadata.annotations['olm.targetNamespaces']"}}
        return {"name": variable["name"], "valueFrom": targets}
    if value.startswith(f"{OPERATOR_NAMESPACE}/"):
        return {**variable, "value": value.replace(OPERATOR_NAMESPACE, "$(POD_NAMESPACE)", 1)}
    return variable


def manifest(parts: Parts) -> Document:
    """The ClusterServiceVersion."""
    chart, version, images = listing.chart(), release.version(), listing.images()
    docs = listing.SOURCES.format(ref=listing.ref()) + "docs/"
    (home,) = chart["sources"]
    account = {"serviceAccountName": OPERATOR_ACCOUNT, "rules": parts.rules}
    deployments = [
        {"name": d["metadata"]["name"], "label": _labels(d["metadata"]["labels"]), "spec": deployment_spec(d)}
        for d in parts.deployments
    ]
    return {
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": f"{PACKAGE}.v{version}",
            "namespace": "placeholder",
            "annotations": {
                "alm-examples": listing.as_json(listing.examples()),
                "capabilities": chart["annotations"]["artifacthub.io/operatorCapabilities"],
                "categories": "Big Data,Database",
                "containerImage": images["lethe-operator"],
                "createdAt": listing.commit_time(),
                "description": chart["description"],
                "operatorframework.io/suggested-namespace": OPERATOR_NAMESPACE,
                "repository": home,
                "support": chart["maintainers"][0]["name"],
            },
            "labels": {"operatorframework.io/arch.amd64": "supported", "operatorframework.io/os.linux": "supported"},
        },
        "spec": {
            "displayName": "Lethe",
            "description": DESCRIPTION.format(docs=f"{docs}install-olm.md"),
            "version": version,
            "maturity": "alpha",
            "minKubeVersion": chart["kubeVersion"].removeprefix(">=").removesuffix("-0"),
            "keywords": chart["keywords"],
            "links": [{"name": "Documentation", "url": f"{docs}README.md"}, {"name": "Source", "url": home}],
            "maintainers": [{"name": m["name"], "email": m["email"]} for m in chart["maintainers"]],
            "provider": {"name": chart["maintainers"][0]["name"], "url": chart["maintainers"][0]["url"]},
            "icon": [{"base64data": base64.b64encode(ICON.read_bytes()).decode(), "mediatype": "image/svg+xml"}],
            "installModes": [{"type": mode, "supported": is_so} for mode, is_so in INSTALL_MODES.items()],
            "customresourcedefinitions": {"owned": listing.definitions()},
            "relatedImages": [{"name": name, "image": image} for name, image in images.items()],
            "install": {
                "strategy": "deployment",
                "spec": {"permissions": [account], "deployments": deployments},
            },
        },
    }


def bundle(parts: Parts) -> dict[str, bytes]:
    """The files of the bundle, by path."""
    files = {"metadata/annotations.yaml": {"annotations": ANNOTATIONS}}
    files[f"manifests/{PACKAGE}.clusterserviceversion.yaml"] = manifest(parts)
    for resource in RESOURCES:
        definition = listing.crd(resource)
        files[f"manifests/{definition['metadata']['name']}.yaml"] = definition
    for document in parts.beside:
        files[f"manifests/{document['metadata']['name']}-{document['kind'].lower()}.yaml"] = document
    return {path: listing.as_yaml(content).encode() for path, content in files.items()}


def write(folder: Path) -> None:
    """Write the files of this module's docstring into a folder."""
    version = release.version()
    parts = sort_out(listing.render(VALUES, OPERATOR_NAMESPACE))
    files = bundle(parts)
    for path, content in files.items():
        file = folder / f"olm-bundle-{version}" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content)
    oci.write_image(folder / f"olm-bundle-{version}.tar", files, ANNOTATIONS, listing.commit_time())
    objects = "---\n".join(listing.as_yaml(document) for document in parts.in_namespaces)
    (folder / f"lethe-olm-namespace-{version}.yaml").write_text(objects)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
