"""The volumes of a pod become files of its folder, and its paths point there."""

import base64
from pathlib import Path
from typing import Any

import pytest
from lethe_local.node import VolumeMissing, mounted, translated

PLACES = {"/etc/lethe/run": "/home/me/runs/a/run", "/scratch": "/home/me/runs/a/scratch", "/tmp": "/home/me/runs/a/tmp"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("/etc/lethe/run/run.json", "/home/me/runs/a/run/run.json"),
        ("/scratch", "/home/me/runs/a/scratch"),
        ("spark.local.dir=/scratch", "spark.local.dir=/home/me/runs/a/scratch"),
        ('["/etc/lethe/run/0.run.json"]', '["/home/me/runs/a/run/0.run.json"]'),
        ("file:///data/scratch/x", "file:///data/scratch/x"),
        ("s3://lake/scratch", "s3://lake/scratch"),
        ("/scratchy", "/scratchy"),
        ("/tmp/buffer", "/tmp/buffer"),
    ],
)
def test_only_mounted_paths_are_translated(text: str, expected: str) -> None:
    assert translated(text, PLACES) == expected


def pod(volume: dict[str, Any], mount: str = "/etc/v") -> dict[str, Any]:
    container = {"volumeMounts": [{"name": "v", "mountPath": mount}]}
    return {"spec": {"containers": [container], "volumes": [{"name": "v", **volume}]}}


def find(kind: str, name: str) -> dict[str, Any] | None:
    return {
        ("ConfigMap", "c"): {"kind": "ConfigMap", "data": {"a": '{"file": "/etc/v/x"}', "b": "2"}},
        ("Secret", "s"): {
            "kind": "Secret",
            "data": {"k": base64.b64encode(b"\xff").decode()},
            "stringData": {"t": "text"},
        },
    }.get((kind, name))


def test_a_config_map_gives_the_keys_that_are_asked_for(tmp_path: Path) -> None:
    items = [{"key": "a", "path": "run.json"}]

    places = mounted(pod({"configMap": {"name": "c", "items": items}}), tmp_path, find)

    assert places == {"/etc/v": str(tmp_path / "v")}
    assert {p.name: p.read_text() for p in (tmp_path / "v").iterdir()} == {"run.json": f'{{"file": "{tmp_path}/v/x"}}'}


def test_a_secret_is_decoded_and_readable_by_its_owner_alone(tmp_path: Path) -> None:
    mounted(pod({"secret": {"secretName": "s"}}), tmp_path, find)

    assert (tmp_path / "v/k").read_bytes() == b"\xff"
    assert (tmp_path / "v/t").read_text() == "text"
    assert oct((tmp_path / "v/k").stat().st_mode & 0o777) == "0o600"


def test_sources_can_be_optional(tmp_path: Path) -> None:
    sources = [{"secret": {"name": "absent", "optional": True}}, {"configMap": {"name": "c"}}]

    mounted(pod({"projected": {"sources": sources}}), tmp_path, find)

    assert sorted(p.name for p in (tmp_path / "v").iterdir()) == ["a", "b"]


@pytest.mark.parametrize(
    ("volume", "message"),
    [
        ({"secret": {"secretName": "absent"}}, 'secret "absent" not found'),
        ({"configMap": {"name": "c", "items": [{"key": "z", "path": "z"}]}}, "ConfigMap c has no key z"),
    ],
)
def test_a_missing_object_is_named(tmp_path: Path, volume: dict[str, Any], message: str) -> None:
    with pytest.raises(VolumeMissing, match=message):
        mounted(pod(volume), tmp_path, find)
