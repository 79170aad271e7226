"""What both images have in common, and what the builder may read."""

from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
DOCKERFILES = ("operator/Dockerfile", "spark_apps/Dockerfile")
DIFFER = "# From here on the images differ."


def instructions(dockerfile: str) -> list[str]:
    return [line for line in (ROOT / dockerfile).read_text().splitlines() if not line.startswith("#") or line == DIFFER]


def test_both_images_begin_with_the_same_layers() -> None:
    """A builder makes a layer again for another text, and then no node can share it."""
    heads = []
    for dockerfile in DOCKERFILES:
        lines = instructions(dockerfile)
        heads.append(lines[: lines.index(DIFFER)])

    assert heads[0] == heads[1]
    assert any("common.txt" in line for line in heads[0])


@pytest.mark.parametrize("dockerfile", DOCKERFILES)
def test_the_builder_gets_every_file_that_is_copied(dockerfile: str) -> None:
    lines = (ROOT / ".dockerignore").read_text().splitlines()
    allowed = [line[1:] for line in lines if line.startswith("!")]
    copied = [line.split()[1] for line in instructions(dockerfile) if line.startswith("COPY ")]

    assert lines[0] == "*"
    assert copied
    for source in copied:
        assert (ROOT / source).exists()
        assert any(source == a or source.startswith(f"{a}/") for a in allowed), (
            f"{source} is in no line of .dockerignore"
        )


@pytest.mark.parametrize("name", ["operator", "spark"])
def test_the_shared_packages_are_those_of_each_image(name: str) -> None:
    def pins(file: str) -> set[str]:
        lines = (ROOT / f"dev/requirements/{file}.txt").read_text().splitlines()
        return {line.split()[0] for line in lines if "==" in line.split(" ")[0]}

    assert pins("common") <= pins(name)
