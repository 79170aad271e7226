"""Writes docs/cli.md from the help texts of the commands.

Run `python docs/generate_cli.py` after changing a command: a test fails until the page is current. The rendering is pure.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import click
from lethe.cli.main import cli

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 100
SHARED_BY = 3
"""An option of at least this many commands, with one help text, is described once."""
HEAD = """<!-- Made by docs/generate_cli.py. Edit the commands' help, then run it. -->

# The command line

`pip install lethe-lake` installs the command `lethe` ([until a release is published, from a
checkout](../README.md#what-to-look-at-next)). Commands on a TABLE inspect it, and need neither Spark nor Kubernetes. They
change no table; `lethe track` writes the table of batches beside one. The catalogs are those of PyIceberg's `.pyiceberg.yaml`.
They also take the name of a Dataset, or `dataset/NAME`, and then read its table with the catalogs of `lethe local` or of your own
`.pyiceberg.yaml`.

Commands on resources (`status`, `why`, `runs`, `logs`, `put`, `revert`, `undo`, `replay`, `erase`, `vacuum-now`,
`approve`) need `lethe-lake[kubectl]`. They create or annotate resources in a cluster or in `lethe local`; the operator does the
work. `put` writes into a buffer with your own credentials, or with `--gateway` [through the gateway](gateway.md#uploads).
[`lethe plan`](plan.md) needs `lethe-lake[plan]`, and only reads. The program is also installed as `kubectl-lethe`, so
`kubectl lethe status` is the same. They talk to the first of these, and `lethe status` shows which:

1. what `--dir` (a folder of `lethe local`), `--kubeconfig` or `--context` names
2. the cluster of the variable `KUBECONFIG`
3. `lethe local`, if it runs in `LETHE_LOCAL` or `~/.lethe` (not for `kubectl lethe`)
4. the cluster of `~/.kube/config`

```sh
lethe revert flights 2013-02-08.UA --reason "invented flights" --wait
lethe undo revert-flights-994cc8a97f --dry-run
lethe revert flights 2013-02-08.UA -o yaml >> restatements.yaml    # for Git: creates nothing
lethe put flights ./2013-12-31.UA --dry-run                        # would a consolidation take these files?
lethe put flights ./loads --each                                   # each folder in it is a batch
lethe put flights ./2013-12-31.UA --gateway https://lethe.example.org  # with a token, and nothing else
lethe revert flights --batches '2013-02-*.UA'                      # shows which, and asks
lethe why flights                                                  # and the next command to run
lethe erase flights --column passenger --values - < values.txt     # values are never arguments, and never printed
```

A shell completes commands, options and names of resources. Add one line to its configuration:

```sh
eval "$(_LETHE_COMPLETE=bash_source lethe)"     # ~/.bashrc
eval "$(_LETHE_COMPLETE=zsh_source lethe)"      # ~/.zshrc
_LETHE_COMPLETE=fish_source lethe | source      # ~/.config/fish/config.fish
```

`kubectl lethe` is completed by kubectl's own completion (`kubectl completion bash`), which runs
`kubectl_complete-lethe`: pip installs it, krew does not.

[Krew](https://krew.sigs.k8s.io) and [Homebrew](https://brew.sh) install the plugin alone: `kubectl krew install lethe`, or
`brew install lethe-lake/tap/kubectl-lethe`. It needs Python 3.11 or newer, and installs its packages at the first call.
`make dist` makes the archive, krew's manifest and the formula. For an index of yours, publish the archive and name its folder:
`LETHE_RELEASE_URL=https://… make dist`.

```sh
make dist
kubectl krew install --manifest=dist/lethe.yaml --archive=dist/kubectl-lethe-0.1.0.tar.gz
```

| Exit code | Of | Meaning |
|---|---|---|
| 0 | all commands | done, no problem found |
| 1 | `status` | a Restatement or a run failed in the last day |
| 1 | `doctor`, `ledger verify`, `erasures verify` | the table has a problem |
| 1 | `put` of several batches | a batch was not put |
| 1 | `plan`, `--dry-run` | a resource would be refused, or not carried out |
| 1 | `--wait`, `local wait` | it failed, or the timeout has passed |
| 1 | all commands | Ctrl-C, or the answer to a question was no |
| 2 | all commands | wrong arguments |
| 3 | `plan --exit-code` | the apply would change something |
| 10 | all commands | change the input, the table or its ledger first: the line on stderr says how |
| 20 | all commands | the catalog, the storage or the cluster is unavailable: try again later |

On a terminal, tables fit its width: texts are wrapped, less important columns are left out (`-o wide` leaves out none), and
what still does not fit is printed as one line for each column. Names, ids, reasons and paths stay whole. There are colours on
a terminal only, and none with `NO_COLOR`.

An error is one line on stderr, `lethe: <Reason>: <what to do>`; it never contains rows or credentials.

## Options of several commands

Each command has `-h`. Those that have one of these options name it under *Also*.
"""


def page() -> str:
    """The whole page."""
    commands = list(_commands(cli, click.Context(cli, info_name="lethe", **cli.context_settings)))
    uses = Counter(_key(option, own) for command, own in commands for option in _options(command))
    shared = {key for key, count in uses.items() if count >= SHARED_BY}
    return "\n".join([HEAD, _shared_options(sorted(shared)), *(_section(c, own, shared) for c, own in commands)])


def _commands(group: click.Group, context: click.Context) -> Iterator[tuple[click.Command, click.Context]]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=context, terminal_width=WIDTH, max_content_width=WIDTH)
        if isinstance(command, click.Group):
            yield from _commands(command, own)
        else:
            yield command, own


def _options(command: click.Command) -> list[click.Option]:
    return [p for p in command.params if isinstance(p, click.Option) and not p.hidden]


def _key(option: click.Option, context: click.Context) -> tuple[str, str]:
    record = option.get_help_record(context)
    assert record is not None
    return record


def _shared_options(records: list[tuple[str, str]]) -> str:
    formatter = click.HelpFormatter(width=WIDTH)
    formatter.write_dl(records)
    return f"```text\n{formatter.getvalue().rstrip()}\n```\n"


def _section(command: click.Command, context: click.Context, shared: set[tuple[str, str]]) -> str:
    formatter = click.HelpFormatter(width=WIDTH)
    command.format_usage(context, formatter)
    command.format_help_text(context, formatter)
    own = [_key(option, context) for option in _options(command)]
    if particular := [record for record in own if record not in shared]:
        with formatter.section("Options"):
            formatter.write_dl(particular)
    if also := [names.split(", ")[-1].split(" ")[0] for names, _ in own if (names, _) in shared]:
        formatter.write_paragraph()
        formatter.write_text(f"Also: {', '.join(also)}")
    return f"## {context.command_path}\n\n```text\n{formatter.getvalue().rstrip()}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
