"""What a shell completes: names of resources from the server, and nothing when there is no answer."""

import os
import subprocess
import sys
import time

import pytest
from click.shell_completion import CompletionItem, ShellComplete
from lethe.cli.completion import complete_plugin, lines
from lethe.cli.main import PLUGIN, cli
from lethe.kube import RESTATEMENTS

from tests.services.kubectl.conftest import LocalApi
from tests.support.documents import resource

RUNS = [{"name": "consolidation-1", "kind": "Consolidation"}]


@pytest.fixture
def lake(local: LocalApi) -> LocalApi:
    local.dataset("flights", {"runs": RUNS})
    local.dataset("orders")
    spec = {"datasetRef": {"name": "flights"}, "operation": "Revert", "batchIds": ["a"]}
    local.kube.create(RESTATEMENTS, "default", resource("Restatement", "revert-a", spec))
    return local


def completed(local: LocalApi, *words: str) -> list[str]:
    """The last word is incomplete."""
    command, *rest = words[:-1]
    given = [command, "--dir", str(local.folder.path), *rest]
    return [str(i.value) for i in ShellComplete(cli, {}, "lethe", "").get_completions(given, words[-1])]


def test_each_command_on_a_dataset_completes_its_name(lake: LocalApi) -> None:
    for command in ("revert", "erase", "replay", "vacuum-now", "approve", "put", "runs", "batches"):
        assert completed(lake, command, "") == ["flights", "orders"], command
        assert completed(lake, command, "fl") == ["flights"], command


def test_names_of_other_resources_are_completed(lake: LocalApi) -> None:
    assert completed(lake, "undo", "") == ["revert-a"]
    assert completed(lake, "logs", "") == ["flights", "orders", "consolidation-1"]
    assert completed(lake, "why", "") == ["dataset/", "restatement/", "vacuumpolicy/", "flights", "orders", "revert-a"]
    assert completed(lake, "why", "restatement/r") == ["restatement/revert-a"]
    assert completed(lake, "why", "nonsense/") == []


def test_a_server_that_does_not_answer_is_silent_and_does_not_delay(lake: LocalApi) -> None:
    """Nothing listens on the port of the kubeconfig."""
    text = lake.folder.kubeconfig.read_text()
    port = lake.kube.server.url.rpartition(":")[2]
    lake.folder.kubeconfig.write_text(text.replace(f":{port}", ":1"))
    began = time.monotonic()

    assert completed(lake, "revert", "") == []
    assert time.monotonic() - began < 60


def test_the_names_of_commands_are_completed_without_importing_them() -> None:
    code = "import sys\nfrom lethe.cli.main import main\ntry: main([])\nfinally: print(*sys.modules, file=sys.stderr)"
    environ = {**os.environ, "_LETHE_COMPLETE": "bash_complete", "COMP_WORDS": "lethe va", "COMP_CWORD": "1"}

    done = subprocess.run([sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=False)

    assert done.stdout == "plain,vacuum-now\n"
    assert not {"pyiceberg", "kubernetes", "rich"} & set(done.stderr.split())


def test_kubectl_gets_names_with_their_help_and_a_directive(
    lake: LocalApi, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    at = ["--kubeconfig", str(lake.folder.kubeconfig)]
    for words in (["vacuum-n"], ["revert", *at, "f"], ["revert", *at, "nothing-like-it"], ["put", *at, "flights", ""]):
        monkeypatch.setattr(sys, "argv", ["kubectl_complete-lethe", *words])
        complete_plugin()

    assert capsys.readouterr().out == ("vacuum-now\tRequest a vacuum of a Dataset.\n:4\nflights\n:4\n:4\n:0\n")
    assert lines([CompletionItem("a"), CompletionItem("", type="file")]) == ["a", ":0"]
    assert PLUGIN == "kubectl lethe"
