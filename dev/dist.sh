#!/usr/bin/env bash
# Build the distribution lethe-lake, a wheel and an sdist, and the kubectl plugin for krew and Homebrew, into a folder:
# dist.sh [FOLDER]   (default: dist)
#
# The build runs on a copy of the tracked files, so that neither other files get in nor build folders stay behind.
source "$(dirname "$0")/lib.sh"
cd "$ROOT"
out=$(portable absolute "${1:-dist}")

"$ROOT/dev/venv.sh" build
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git ls-files -z -- pyproject.toml README.md LICENSE operator spark_apps ':!operator/lethe_local/crds' | tar -chf - --null -T - | tar -xf - -C "$copy"
cp -R crds "$copy/operator/lethe_local/crds" # in the checkout a link, which a build does not follow
mkdir -p "$out"
cd "$copy"
for kind in sdist wheel; do # the hooks of PEP 517
  "$LETHE_CACHE/venv-build/bin/python" -c "from setuptools import build_meta; build_meta.build_$kind('$out')" > "$copy/log" 2>&1 \
    || { cat "$copy/log" >&2; exit 1; }
done
version=$(sed -n 's/^version = "\(.*\)"$/\1/p' "$copy/pyproject.toml")
"$ROOT/dev/plugin/pack.sh" "$out/lethe_lake-$version-py3-none-any.whl" "$out"
say "$(cd "$out" && ls -- lethe_lake-* kubectl-lethe* lethe.yaml)"
