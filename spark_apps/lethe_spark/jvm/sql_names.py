"""Names as Spark SQL takes them, whatever characters they hold. Pure."""


def quoted(name: str) -> str:
    """One name; a dot in it is part of it."""
    return "`" + name.replace("`", "``") + "`"


def quoted_path(*names: str) -> str:
    """Names with dots between their parts, such as a catalog and `namespace.table`."""
    return ".".join(quoted(part) for name in names for part in name.split("."))
