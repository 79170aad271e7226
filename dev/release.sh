#!/usr/bin/env bash
# Make everything that a release consists of, in a folder: release.sh [--push REGISTRY] [FOLDER]   (default: build/release)
#
# Images of this version as OCI archives with labels, a list of the contents of each (SPDX), the chart, the CRDs as one file, the Python
# distribution, krew's plugin, the changelog's section, and checksums. Nothing leaves this machine without --push, which pushes images
# and chart to a registry, and first refuses a checkout that is not to be released (dev/release.py check --final).
source "$(dirname "$0")/lib.sh"
cd "$ROOT"
registry=
if [ "${1:-}" = --push ]; then
  registry=${2:?--push needs a registry, such as ghcr.io/lethe-lake}
  shift 2
fi
out=${1:-build/release}
mkdir -p "$out"
out=$(cd "$out" && pwd)

"$ROOT/dev/venv.sh"
"$ROOT/dev/tools.sh" helm syft
if [ -n "$registry" ]; then python3 dev/release.py check --final; else python3 dev/release.py check; fi
version=$(python3 dev/release.py version)
rm -rf "${out:?}"/*

for kind in operator spark; do
  "$ROOT/dev/images.sh" release "$kind" "$version" "$out/lethe-$kind-$version.tar"
  progress "listing the contents of the $kind image" syft scan -q "oci-archive:$out/lethe-$kind-$version.tar" -o "spdx-json=$out/lethe-$kind-$version.spdx.json"
done
progress "packaging the chart" helm package helm/lethe --destination "$out"
for file in crds/*.yaml; do
  cat "$file"
  echo "---"
done > "$out/lethe-crds-$version.yaml"
"$ROOT/dev/dist.sh" "$out"
python3 dev/release.py notes > "$out/notes.md"
(cd "$out" && python3 -c 'import hashlib, pathlib
for file in sorted(p for p in pathlib.Path().iterdir() if p.is_file() and p.name != "SHA256SUMS"):
    print(hashlib.sha256(file.read_bytes()).hexdigest(), "", file)' > SHA256SUMS)

if [ -n "$registry" ]; then
  for kind in operator spark; do
    progress "pushing the $kind image" "$ROOT/dev/images.sh" push "$out/lethe-$kind-$version.tar" "$registry/lethe-$kind:$version"
  done
  progress "pushing the chart" helm push "$out/lethe-$version.tgz" "oci://$registry/charts"
fi
say "$out: $(cd "$out" && echo ./*)"
