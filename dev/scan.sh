#!/usr/bin/env bash
# Scan the installed objects for security problems: scan.sh checkov | kube-score
#
# The exceptions, each with its reason, are in dev/scan/checkov.yaml and below.
source "$(dirname "$0")/lib.sh"
cd "$ROOT"

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
rendered=$folder/rendered.yaml

# shellcheck disable=SC2016  # no expansion is meant
NOT_SCORED=(
  # Releases have tags that never move; image.pullPolicy sets another policy.
  container-image-pull-policy
  # The images belong to UID 1000 and to 185, Spark's own user.
  container-security-context-user-group-id
  # A second replica of the committer has no effect, so there is nothing to spread. The operator's pods have topologySpreadConstraints.
  deployment-has-host-podantiaffinity
  deployment-replicas
  # The operator and Spark create the pods of drivers and executors later; the chart has no pods that these policies select.
  networkpolicy-targets-pod
)

"$ROOT/dev/tools.sh" helm
helm template lethe helm/lethe --namespace lethe-system --values dev/scan/values.yaml > "$rendered"
case $1 in
  checkov)
    "$ROOT/dev/venv.sh" checkov
    files=(--file "$rendered")
    while read -r file; do files+=(--file "$file"); done < <(git ls-files '*Dockerfile' .github/workflows)
    "$LETHE_CACHE/venv-checkov/bin/checkov" --config-file dev/scan/checkov.yaml "${files[@]}"
    ;;
  kube-score)
    "$ROOT/dev/tools.sh" kube-score
    ignored=()
    for test in "${NOT_SCORED[@]}"; do ignored+=(--ignore-test "$test"); done
    kube-score score "${ignored[@]}" --output-format ci "$rendered" > "$rendered.scores" || { grep -vE '\[(OK|SKIPPED)\]' "$rendered.scores"; exit 1; }
    ;;
  *) sed -n 2p "$0"; exit 2 ;;
esac
