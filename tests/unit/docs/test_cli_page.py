"""The page of the command line says what the commands say."""

from pathlib import Path

from tests.support.scripts import load_script

DOCS = Path(__file__).parents[3] / "docs"


def test_the_page_is_current_and_has_a_section_for_each_command() -> None:
    """When this fails: python docs/generate_cli.py"""
    page: str = load_script("docs/generate_cli.py").page()

    assert page == (DOCS / "cli.md").read_text()
    for text in ("## lethe ledger verify", "## lethe batches", "## lethe read", "## lethe doctor", "--grace-hours"):
        assert text in page
