#!/usr/bin/env bash
# Build the documentation site: site.sh [--check | FOLDER]   (default: build/site)
#
# A dead link, a page that is not in the navigation, and a page that loads anything from elsewhere are errors. --check keeps nothing.
# LETHE_REPOSITORY is the URL of the repository, to which pages link for files that are no pages.
source "$(dirname "$0")/lib.sh"
cd "$ROOT"
export NO_MKDOCS_2_WARNING=1

"$ROOT/dev/venv.sh" docs
check=
if [ "${1:-}" = --check ]; then
  check=1
  out=$(mktemp -d)
  trap 'rm -rf "$out"' EXIT
else
  out=$(portable absolute "${1:-build/site}")
fi
"$LETHE_CACHE/venv-docs/bin/mkdocs" build --strict --site-dir "$out" 2>&1 | { grep -v '^INFO' >&2 || true; }
loaded='<(script|link|img|iframe|source)[^>]*(src|href)="?(https?:)?//'
if grep -rlE --include '*.html' "$loaded" "$out"; then
  die "these pages load something from elsewhere"
fi
[ -z "$check" ] || exit 0
"$ROOT/dev/tools.sh" mermaid
cp "$LETHE_CACHE/bin/mermaid.min.js" "$out/assets/"
say "$out: $(find "$out" -name '*.html' | wc -l) pages"
