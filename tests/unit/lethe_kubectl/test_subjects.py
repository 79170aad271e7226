"""The values that name a subject: each is erased as it is written, and nothing else is."""

from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from lethe.base.names import lines_of
from lethe_kubectl import commands
from lethe_kubectl.commands import NewSecret
from lethe_kubectl.subjects import NamedIdentity, named_identities, values_of


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\x1d", "\x1e"])
def test_other_separators_of_lines_are_part_of_a_value(separator: str) -> None:
    """Otherwise the rows of a customer Ana would be erased, too."""
    value = f"Ana{separator}Example"

    assert values_of([NamedIdentity("customer")], f"{value}\r\nBo\n") == {"customer": f"{value}\nBo\n"}


def test_several_identities_have_their_values_in_lines_with_their_names() -> None:
    identities = named_identities(["customer", "email"])

    found = values_of(identities, "customer=4711\r\n\nemail=a=b\u2028c\ncustomer= 12\n")

    assert found == {"customer": "4711\n 12\n", "email": "a=b\u2028c\n"}


def test_a_value_of_several_lines_is_refused_on_the_command_line() -> None:
    with pytest.raises(click.UsageError, match="several lines") as refused:
        named_identities(["customer=Ana\nBo"])

    assert "Ana" not in refused.value.message


@pytest.mark.parametrize("file", ["values.txt", "-"])
@pytest.mark.parametrize("of", [("flights", "--column", "name"), ("--everywhere", "--subject", "customer")])
def test_a_carriage_return_in_a_file_is_part_of_a_value(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, of: tuple[str, ...], file: str
) -> None:
    made: list[NewSecret] = []
    monkeypatch.setattr(commands, "_create", lambda _document, secret, **_how: made.append(secret))
    monkeypatch.chdir(tmp_path)
    content = "\ufeffAna\rExample\r\nBo\n".encode()
    Path("values.txt").write_bytes(content)

    result = CliRunner().invoke(commands.erase, [*of, "--values", file], input=content if file == "-" else None)

    assert result.exit_code == 0, result.output
    assert [lines_of(values) for secret in made for values in secret.values.values()] == [["Ana\rExample", "Bo", ""]]
