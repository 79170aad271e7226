"""`lethe local apply` refuses names that do not exist before it changes anything, and names the file."""

from pathlib import Path
from typing import Any

import pytest
import yaml
from lethe.kube import DATASETS

from tests.services.kubectl.conftest import LocalApi
from tests.support.documents import dataset_spec, resource

WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "a field": (
        {"spec": dataset_spec(consolidaton={})},
        'unknown field "spec.consolidaton" (did you mean "consolidation"?)',
    ),
    "an annotation": (
        {"metadata": {"name": "b", "annotations": {"lethe.dev/pause": "true"}}},
        'unknown annotation "lethe.dev/pause" (did you mean "lethe.dev/paused"?)',
    ),
    "a kind": ({"kind": "Datasets"}, 'unknown kind "Datasets" (did you mean "Dataset"?)'),
    "a value": ({"spec": dataset_spec(batchColumn=7)}, "spec.batchColumn in body must be of type string"),
}


@pytest.mark.parametrize("dry_run", [False, True])
@pytest.mark.parametrize(("changes", "said"), WRONG.values(), ids=WRONG)
def test_what_is_unknown_or_wrong_is_named_with_its_file(
    local: LocalApi, tmp_path: Path, changes: dict[str, Any], said: str, dry_run: bool
) -> None:
    file = tmp_path / "wrong.yaml"
    file.write_text(yaml.safe_dump({**resource("Dataset", "b", dataset_spec()), **changes}))

    refused = local.lethe("local", "apply", "-f", str(file), *(["--dry-run"] if dry_run else []))

    assert (refused.exit_code, f"{file}: " in refused.output, said in refused.output) == (10, True, True), (
        refused.output
    )


def test_nothing_is_applied_if_a_later_document_has_an_unknown_name(local: LocalApi, tmp_path: Path) -> None:
    file = tmp_path / "two.yaml"
    documents = [resource("Dataset", "a", dataset_spec()), resource("Dataset", "b", dataset_spec(x=1))]
    file.write_text(yaml.safe_dump_all(documents))

    refused = local.lethe("local", "apply", "-f", str(file))

    assert (refused.exit_code, f"{file}, document 2: " in refused.stderr) == (10, True)
    assert local.kube.list(DATASETS, "default") == []
