"""Recognizes file names that only Iceberg writers use, so that a table's folder is detected without reading a file. Pure."""

import re
from typing import Final

VERSION_HINT: Final = "version-hint.text"
_UUID: Final = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
_TABLE: Final = (".metadata.json", ".metadata.json.gz")
_METADATA: Final = re.compile(rf"snap-\d+-\d+-{_UUID}\.avro|{_UUID}-m\d+\.avro|optimized-m-{_UUID}\.avro")
_DATA: Final = re.compile(rf"\d{{5}}-\d+-{_UUID}(-\d{{5}})?(-(lethe-)?deletes)?\.(parquet|orc|avro|puffin)")


def is_table_metadata(key: str) -> bool:
    """Whether a key names a metadata file, a version hint, a manifest or a manifest list."""
    if key.endswith(".parquet"):
        return False  # a shortcut: most files are Parquet
    name = key.rpartition("/")[2]
    return name.endswith(_TABLE) or name == VERSION_HINT or _METADATA.fullmatch(name) is not None


def is_table_data(key: str) -> bool:
    """Whether a key names a data or delete file by the pattern of Iceberg's writers."""
    return _DATA.fullmatch(key.rpartition("/")[2]) is not None
