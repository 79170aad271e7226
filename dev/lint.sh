#!/usr/bin/env bash
# Run linters, all of them even after a failure, and fail if any of them failed: lint.sh python | all
#
# `python`: those that come with the Python environment. `all`: also those of the chart, the images and the documentation site.
source "$(dirname "$0")/lib.sh"
cd "$ROOT"
BIN=$LETHE_CACHE/venv/bin
failed=()

check() {
  local label=$1 output
  shift
  if output=$("$@" 2>&1); then
    say "  $label: ok"
  else
    say "  $label: FAILED"
    printf '%s\n' "$output" | sed 's/^/    /' >&2
    failed+=("$label")
  fi
}

same_in_helm3() { # the chart with its defaults, except for the generated key. Helm 3 as it is built here takes clusters for 1.20
  local args=(template lethe helm/lethe --namespace lethe-system --kube-version 1.36.3)
  helm "${args[@]}" > /dev/null && diff -B -I '^  key: ' <(helm "${args[@]}") <(helm3 "${args[@]}") && helm3 lint --strict helm/lethe
}

# shellcheck disable=SC2317  # called through check
shellcheck_scripts() {
  git ls-files -z --cached --others --exclude-standard 'dev/*.sh' .ci/run | xargs -0 "$BIN/shellcheck" -x -P dev
}

say "lint:"
check "ruff check" "$BIN/ruff" check --cache-dir "$LETHE_CACHE/ruff" .
check "ruff format" "$BIN/ruff" format --cache-dir "$LETHE_CACHE/ruff" --check .
check "mypy" "$BIN/mypy" --cache-dir "$LETHE_CACHE/mypy"
for folder in examples/*; do
  compgen -G "$folder/*.py" > /dev/null || continue
  # Each is a folder of scripts that import one another. No other check finds removed names that they use.
  MYPYPATH=spark_apps:operator:$folder check "mypy $folder" "$BIN/mypy" --cache-dir "$LETHE_CACHE/mypy/$(basename "$folder")" "$folder"/*.py
done
check "layers" "$BIN/lint-imports" --cache-dir "$LETHE_CACHE/imports"
check "shellcheck" shellcheck_scripts
if [ "${1:-all}" = all ]; then
  "$ROOT/dev/tools.sh" helm helm3 promtool
  check "helm lint" helm lint --strict helm/lethe
  check "helm 3" same_in_helm3
  check "helm lint services" helm lint --strict dev/services --set images.postgres=a,images.versitygw=b,images.spark=c
  check "checkov" dev/scan.sh checkov
  check "kube-score" dev/scan.sh kube-score
  check "docs site" dev/site.sh --check
  check "promtool" promtool check rules --lint=all --lint-fatal helm/lethe/files/alerts.yaml
fi
[ ${#failed[@]} = 0 ] || die "lint: ${failed[*]}"
