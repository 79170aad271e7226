"""Writes docs/cli.md from the help texts of the commands.

Run `python docs/generate_cli.py` after changing a command: a test fails until the page is current. The rendering is pure.
"""

from collections.abc import Iterator
from pathlib import Path

import click
from lethe.cli.main import cli

PAGE = Path(__file__).with_name("cli.md")
WIDTH = 100
HEAD = """<!-- Made by docs/generate_cli.py. Edit the commands' help, then run it. -->

# The command line

`pip install lethe-lake` installs the command `lethe`. Commands on a TABLE inspect it, and need neither Spark nor Kubernetes. They
change no table; `lethe track` writes the table of batches beside one. The catalogs are those of PyIceberg's `.pyiceberg.yaml`.
`batches` and `erasures` also take the name of a Dataset, or `dataset/NAME`, and then read its table: with the catalogs of
`lethe local`, or for a cluster with those of your own `.pyiceberg.yaml`, which needs a catalog of the same name.

Commands on resources (`status`, `why`, `runs`, `logs`, `put`, `revert`, `undo`, `replay`, `erase`, `vacuum-now`,
`approve`) need `lethe-lake[kubectl]`. They create or annotate resources in a cluster or in `lethe local`; the operator does the
work. `put` writes into a buffer with your own credentials, or with `--gateway` [through the gateway](gateway.md#uploads).
[`lethe plan`](plan.md) needs `lethe-lake[plan]`, and only reads. The program is also installed as `kubectl-lethe`, so
`kubectl lethe status` is the same. They talk to the first of these, and
`lethe status` says to which:

1. what `--dir` (a folder of `lethe local`), `--kubeconfig` or `--context` names
2. the cluster of the variable `KUBECONFIG`
3. `lethe local`, if it runs in `LETHE_LOCAL` or `~/.lethe` (not for `kubectl lethe`)
4. the cluster of `~/.kube/config`

```sh
lethe revert flights 2013-02-08.UA --reason "invented flights" --wait
lethe undo revert-flights-994cc8a97f --dry-run
lethe revert flights 2013-02-08.UA -o yaml >> restatements.yaml    # for Git: creates nothing
lethe put flights ./2013-12-31.UA --dry-run                        # would a consolidation take these files?
lethe put flights ./2013-12-31.UA --gateway https://lethe.example.org  # with a token, and nothing else
lethe why flights                                                  # and the next command to run
lethe erase flights --column passenger --values - < values.txt     # values are never arguments, and never printed
```

A shell completes commands, options, and the names of Datasets, Restatements, policies and runs. Add one line to its
configuration. The names come from the server that the command would use; without an answer within seconds there are none.

```sh
eval "$(_LETHE_COMPLETE=bash_source lethe)"     # ~/.bashrc
eval "$(_LETHE_COMPLETE=zsh_source lethe)"      # ~/.zshrc
_LETHE_COMPLETE=fish_source lethe | source      # ~/.config/fish/config.fish
```

As a plugin of kubectl it can also be installed with [krew](https://krew.sigs.k8s.io). `make dist` makes the manifest and the
archive; the plugin needs Python 3.11 or newer, and installs its packages at the first call:

```sh
make dist
kubectl krew install --manifest=dist/lethe.yaml --archive=dist/kubectl-lethe-0.1.0.tar.gz
```

For an index of krew, publish the archive and name its folder: `LETHE_RELEASE_URL=https://… make dist`.

`kubectl lethe` is completed by kubectl's own completion (`kubectl completion bash`), which runs
`kubectl_complete-lethe`: pip installs it, krew does not.

| Exit code | Meaning |
|---|---|
| 0 | done, no problem found |
| 1 | `ledger verify`, `erasures verify`, `doctor` or `plan` found a problem; with `--wait`, the Restatement failed or took long |
| 2 | wrong arguments |
| 3 | with `plan --exit-code`: the apply would change something |
| 10 | change the input, the table or its ledger first: the line on stderr says how |
| 20 | the catalog, the storage or the cluster is unavailable: try again later |

An error is one line on stderr, `lethe: <Reason>: <what to do>`; it never contains rows or credentials. Lists are for people;
`-o json`, `yaml` or `name`
(for some commands `--json`) prints them for programs. On a terminal, longer commands show their progress on stderr.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *_sections(cli, click.Context(cli, info_name="lethe", **cli.context_settings))])


def _sections(group: click.Group, context: click.Context) -> Iterator[str]:
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        own = click.Context(command, info_name=name, parent=context, terminal_width=WIDTH, max_content_width=WIDTH)
        if isinstance(command, click.Group):
            yield from _sections(command, own)
        else:
            yield f"## {own.command_path}\n\n```text\n{command.get_help(own)}\n```\n"


if __name__ == "__main__":
    PAGE.write_text(page())
    print(f"wrote {PAGE}")
