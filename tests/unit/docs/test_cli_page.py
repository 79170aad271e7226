"""The page of the command line says what the commands say."""

import importlib.util
from pathlib import Path
from types import ModuleType

DOCS = Path(__file__).parents[3] / "docs"


def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate_cli", DOCS / "generate_cli.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_current() -> None:
    """When this fails: python docs/generate_cli.py"""
    assert generator().page() == (DOCS / "cli.md").read_text()


def test_every_command_has_its_section_and_its_options_are_there() -> None:
    page = generator().page()

    for told in ("## lethe ledger verify", "## lethe batches", "## lethe read", "## lethe doctor", "--grace-hours"):
        assert told in page
