#!/usr/bin/env python3
"""What a release of this checkout is: release.py version | notes | check [--final [TAG]]

version   the version, which pyproject.toml and the chart must agree on
notes     the changelog's section of it
check     say what is missing: a date in the changelog, a clean checkout, and, if TAG is given, that it names the version; with
          --final, which a published release needs, fail if something is
"""

import pathlib
import re
import subprocess
import sys
import tomllib

ROOT = pathlib.Path(__file__).resolve().parent.parent
UNRELEASED = "unreleased"


def version(root: pathlib.Path = ROOT) -> str:
    """Raises: SystemExit, if the files name different versions."""
    found = {"pyproject.toml": tomllib.loads((root / "pyproject.toml").read_text())["project"]["version"]}
    chart = (root / "helm/lethe/Chart.yaml").read_text()
    for key in ("version", "appVersion"):
        match = re.search(rf"^{key}: *\"?([^\"\s]+)", chart, re.MULTILINE)
        found[f"helm/lethe/Chart.yaml {key}"] = match.group(1) if match else "none"
    if len(set(found.values())) > 1:
        raise SystemExit("the versions differ: " + ", ".join(f"{v} in {where}" for where, v in found.items()))
    return str(found["pyproject.toml"])


def section(root: pathlib.Path = ROOT) -> tuple[str, str]:
    """The date of the version in the changelog, or "unreleased", and its text. Raises: SystemExit, if there is none."""
    wanted = version(root)
    for part in re.split(r"^## ", (root / "CHANGELOG.md").read_text(), flags=re.MULTILINE)[1:]:
        heading, _, text = part.partition("\n")
        match = re.fullmatch(r"(\S+) \((.+)\)", heading.strip())
        if match and match.group(1) == wanted:
            return match.group(2), text.strip() + "\n"
    raise SystemExit(f'CHANGELOG.md has no section "## {wanted} (YYYY-MM-DD)"')


def problems(root: pathlib.Path = ROOT, tag: str = "") -> list[str]:
    """What a published release still needs.

    Args:
        tag: The tag from which it is made; empty for none.
    """
    date, _ = section(root)
    found = []
    if tag and tag != f"v{version(root)}":
        found.append(
            f"the tag is {tag}, and v{version(root)} is expected: tag the commit whose files name this version"
        )
    if not re.fullmatch(r"\d{4}-\d\d-\d\d", date):
        found.append(f'CHANGELOG.md says "{date}" where the date of the release is expected')
    changed = subprocess.run(
        ["git", "status", "--porcelain"], cwd=root, check=True, capture_output=True, text=True
    ).stdout
    if changed:
        found.append(
            "files differ from the last commit: commit or remove "
            + ", ".join(line[3:] for line in changed.splitlines()[:5])
        )
    return found


def main() -> None:
    match sys.argv[1:]:
        case ["version"]:
            print(version())
        case ["notes"]:
            print(section()[1], end="")
        case ["check"]:
            for problem in problems():
                print(f"a dry run: {problem}", file=sys.stderr)
        case ["check", "--final", *tag] if len(tag) < 2:
            found = problems(tag="".join(tag))
            for problem in found:
                print(f"error: {problem}", file=sys.stderr)
            sys.exit(1 if found else 0)
        case _:
            sys.exit(__doc__)


if __name__ == "__main__":
    main()
