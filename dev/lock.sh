#!/usr/bin/env bash
# Resolve the dependencies of pyproject.toml into dev/requirements/*.txt: lock.sh [PACKAGE...]
#
# Each file names every package of one environment by version and by the hashes of its files, for all platforms, so pip installs
# exactly what was tested. Without arguments, only packages that no longer fit pyproject.toml change. Named packages change to their
# newest versions; --upgrade changes all.
source "$(dirname "$0")/lib.sh"
cd "$ROOT"
LOCKS=dev/requirements
ORCHESTRATORS="airflow dagster dbt dlt"

wanted() { python3 dev/requirements.py pyproject.toml "$@"; }

lock() { # NAME ARGUMENT...: from the requirements on standard input
  local name=$1
  shift
  {
    echo "# Made by dev/lock.sh. pip installs these with --require-hashes."
    uv_ pip compile -q - -o "$LOCKS/$name.txt.new" --universal --python-version 3.11 --generate-hashes --no-header --no-annotate \
      --no-emit-index-url "$@" > /dev/null
    cat "$LOCKS/$name.txt.new"
  } > "$LOCKS/$name.txt.made"
  rm "$LOCKS/$name.txt.new"
  mv "$LOCKS/$name.txt.made" "$LOCKS/$name.txt"
}

upgrades=()
for name; do
  if [ "$name" = --upgrade ]; then upgrades+=(--upgrade); else upgrades+=(--upgrade-package "$name"); fi
done
mkdir -p "$LOCKS"
for name in dev checkov engines docs flink rivals servers $ORCHESTRATORS; do # uv reads the versions to keep from the file that it writes
  [ ! -e "$LOCKS/$name.txt" ] || cp "$LOCKS/$name.txt" "$LOCKS/$name.txt.new"
done
say "resolving"
{ wanted gateway local operator plan spark test; cat "$LOCKS/dev.in"; } | lock dev ${upgrades[@]+"${upgrades[@]}"}
# The images contain the versions that the tests used. `common` is what both have.
wanted | lock common -c "$LOCKS/dev.txt"
wanted gateway operator | lock operator -c "$LOCKS/dev.txt"
wanted spark | lock spark -c "$LOCKS/dev.txt"
lock build -c "$LOCKS/dev.txt" < "$LOCKS/build.in"
for name in checkov engines docs flink rivals servers; do lock "$name" ${upgrades[@]+"${upgrades[@]}"} < "$LOCKS/$name.in"; done
# An orchestrator is in one environment with Lethe. dbt-core 1.12 has a part that is downloaded from GitHub while it is installed.
for name in $ORCHESTRATORS; do { wanted "$name"; [ "$name" != dbt ] || echo "dbt-core<1.12"; } | lock "$name" ${upgrades[@]+"${upgrades[@]}"}; done
