"""The paths that docs/architecture.md names are there."""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
PAGE = ROOT / "docs/architecture.md"


def test_each_file_and_folder_that_it_names_exists() -> None:
    named = set(re.findall(r"`((?:crds|helm|operator|spark_apps|tests)/[\w./-]+)`", PAGE.read_text()))

    assert len(named) > 15
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []
