#!/usr/bin/env bash
# Make everything that a release consists of, in a folder: release.sh [--push REGISTRY] [FOLDER]   (default: build/release)
#
# Images of this version as OCI archives with labels, a list of the contents of each (SPDX), the chart, the CRDs as one file, the bundle
# for OLM, the Python distribution, the plugin for krew and Homebrew, the changelog's section, checksums, and how all was made (SLSA). With
# a key in COSIGN_KEY the files are signed. Nothing leaves this machine without --push, which runs dev/publish.sh, and first refuses a
# checkout that is not to be released (dev/release.py check --final).
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
export LETHE_RELEASE_URL=${LETHE_RELEASE_URL:-https://github.com/lethe-lake/lethe/releases/download/v$version}
LETHE_RELEASE_STARTED=$(date -u +%Y-%m-%dT%H:%M:%SZ)
LETHE_IMAGE_BUILDER=$(if docker_answers; then echo docker; else echo buildah; fi)
export LETHE_RELEASE_STARTED LETHE_IMAGE_BUILDER
rm -rf "${out:?}"/*

make_part() { "$LETHE_CACHE/venv/bin/python" -m "dev.distribution.$1" "$out"; }

for kind in operator spark; do
  "$ROOT/dev/images.sh" release "$kind" "$version" "$out/lethe-$kind-$version.tar"
  progress "listing the contents of the $kind image" syft scan -q "oci-archive:$out/lethe-$kind-$version.tar" -o "spdx-json=$out/lethe-$kind-$version.spdx.json"
done
progress "packaging the chart" make_part chart
make_part artifacthub
progress "making the bundle for OLM" make_part olm
for file in crds/*.yaml; do
  cat "$file"
  echo "---"
done > "$out/lethe-crds-$version.yaml"
"$ROOT/dev/dist.sh" "$out"
python3 dev/release.py notes > "$out/notes.md"
(cd "$out" && python3 -c 'import hashlib, pathlib
for file in sorted(p for p in pathlib.Path().iterdir() if p.is_file() and p.name != "SHA256SUMS"):
    print(hashlib.sha256(file.read_bytes()).hexdigest(), "", file)' > SHA256SUMS)
make_part provenance

[ -z "${COSIGN_KEY:-}" ] || "$ROOT/dev/sign.sh" files "$out"
[ -z "$registry" ] || "$ROOT/dev/publish.sh" "$out" "$registry"
say "$out: $(cd "$out" && echo ./*)"
