#!/usr/bin/env bash
# Make krew's archive of the plugin and its manifest from a wheel: pack.sh WHEEL FOLDER
#
# The manifest downloads the archive from LETHE_RELEASE_URL, the folder of a release; without it, install with --archive.
# The same wheel always makes the same archive.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
wheel=$1 out=$(realpath "$2")
version=$(basename "$wheel" | cut -d- -f2)
archive=kubectl-lethe-$version.tar.gz

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp "$wheel" "$here/kubectl-lethe" "$here/../../LICENSE" "$copy"
chmod 755 "$copy/kubectl-lethe"
tar -C "$copy" --sort=name --mtime=@0 --owner=0 --group=0 --numeric-owner -cf - . | gzip -n > "$out/$archive"
sha256=$(sha256sum "$out/$archive" | cut -d' ' -f1)
sed -e "s|{{ version }}|v$version|" -e "s|{{ uri }}|${LETHE_RELEASE_URL:-file://$out}/$archive|" -e "s|{{ sha256 }}|$sha256|" \
  "$here/lethe.yaml" > "$out/lethe.yaml"
