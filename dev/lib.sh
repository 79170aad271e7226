# Shared by all scripts under dev/: folders, the choice of the cluster, and progress messages.
#
# Scripts that run where Docker runs must work on macOS too, with its bash 3.2 and the commands of BSD; tests/services/dev checks it. What has
# no common command is in portable.py.
# shellcheck shell=bash
set -euo pipefail

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export LETHE_CACHE=${LETHE_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/lethe}
export LETHE_STATE=${LETHE_STATE:-${XDG_STATE_HOME:-$HOME/.local/state}/lethe}
export PATH=$LETHE_CACHE/bin:$PATH

# `lethe` 0 is the cluster of the demo, `lethe-test` 1 that of the tests. They never share a node.
export CLUSTER_NAME=${CLUSTER_NAME:-lethe}
export CLUSTER_INDEX=${CLUSTER_INDEX:-0}
# The images that were last loaded into this cluster. Newer ones may have been built since.
export LETHE_LOADED=$LETHE_STATE/loaded-$CLUSTER_NAME.env
# The packages of this checkout. The virtual environment contains only their dependencies.
export PYTHONPATH=$ROOT/operator:$ROOT/spark_apps
mkdir -p "$LETHE_CACHE" "$LETHE_STATE/log"

portable() {
  command -v python3 > /dev/null || "$ROOT/dev/packages.sh" python
  python3 -I "$ROOT/dev/portable.py" "$@"
}

say() { printf '%s\n' "$*" >&2; }
die() { say "error: $*"; exit 1; }

# progress LABEL COMMAND...: run the command with its output in a log, and show progress. On a terminal, the line counts the seconds;
# elsewhere (CI) there is a line at the start, one a minute, and one at the end.
progress() {
  local label=$1 log start=$SECONDS pid rc=0 frame=0
  shift
  log=$LETHE_STATE/log/$(tr -cs 'A-Za-z0-9.\n-' - <<< "$label").log
  "$@" > "$log" 2>&1 < /dev/null &
  pid=$!
  [ -t 2 ] || say "  $label ..."
  while kill -0 $pid 2> /dev/null; do
    if [ -t 2 ]; then
      printf '\r  %s ... %ds ' "$label" $((SECONDS - start)) >&2
    elif [ $((++frame % 300)) = 0 ]; then
      say "  $label ... $((SECONDS - start))s"
    fi
    sleep 0.2
  done
  wait $pid || rc=$?
  [ ! -t 2 ] || printf '\r\033[K' >&2
  if [ $rc = 0 ]; then
    say "  $label: done in $((SECONDS - start))s"
  else
    say "  $label: FAILED after $((SECONDS - start))s; the end of $log:"
    tail -n 40 "$log" | sed 's/^/    /' >&2
  fi
  return $rc
}

# The installer of Python packages: it downloads side by side, and environments share what they have in common. It takes pip's index.
UV=0.13.9
uv_() { # ARGUMENT...
  local folder=$LETHE_CACHE/tools/uv-$UV
  if [ ! -d "$folder" ]; then
    rm -rf "$folder.new"
    mkdir -p "$LETHE_CACHE/tools"
    python3 -m venv "$folder.new" && "$folder.new/bin/python" -m pip install -q --disable-pip-version-check "uv==$UV" || return
    mv "$folder.new" "$folder"
  fi
  env ${PIP_INDEX_URL:+UV_DEFAULT_INDEX="$PIP_INDEX_URL"} ${PIP_CERT:+SSL_CERT_FILE="$PIP_CERT"} \
    UV_CACHE_DIR="$LETHE_CACHE/uv" UV_NO_PROGRESS=1 "$folder/bin/uv" "$@"
}

docker_answers() { command -v docker > /dev/null && portable within 10 docker info > /dev/null 2>&1; }

# Where there is no Docker. Its images are in the cache.
buildah_() { # ARGUMENT...
  mkdir -p "$LETHE_CACHE/tmp"
  TMPDIR=$LETHE_CACHE/tmp STORAGE_DRIVER=overlay BUILDAH_ISOLATION=chroot \
    buildah --root "$LETHE_CACHE/containers" --runroot /run/lethe-containers "$@"
}

# Where Lethe runs: an existing cluster if its context is named, else kind if Docker runs, else the local node.
mode() {
  if [ -n "${CLUSTER:-}" ]; then echo existing; elif docker_answers; then echo kind; else echo node; fi
}

# helm_unstick NAMESPACE RELEASE: remove an interrupted installation, which would block the next one.
helm_unstick() {
  helm list --namespace "$1" --pending --short | grep -qx "$2" || return 0
  helm rollback --namespace "$1" "$2" > /dev/null 2>&1 || helm uninstall --namespace "$1" "$2" --wait
}

# Only one process at a time does a given job. The others wait, and then find it done.
locked() {
  exec 8> "$LETHE_STATE/$1.lock"
  portable wait-for-lock 8
  shift
  "$@"
  exec 8>&-
}

# hash_of FILE-OR-FOLDER...: 12 hex digits that depend only on names and contents.
hash_of() { portable hash "$ROOT" "$@"; }
