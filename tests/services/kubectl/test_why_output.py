"""`lethe why` in each form of output."""

import json

import yaml

from tests.services.kubectl.conftest import LocalApi


def test_json_and_yaml_have_the_lines_and_the_next_command(local: LocalApi) -> None:
    local.dataset("flights")

    text = local.lethe("why", "flights").stdout.splitlines()
    as_json, as_yaml = (local.lethe("why", "flights", "-o", form).stdout for form in ("json", "yaml"))

    answer = json.loads(as_json)
    assert yaml.safe_load(as_yaml) == answer
    assert [*answer["lines"], f"next: {answer['next']}"] == text
