#!/usr/bin/env bash
# Make the archive of the plugin, its manifest for krew and its formula for Homebrew from a wheel: pack.sh WHEEL FOLDER
#
# Both download the archive from LETHE_RELEASE_URL, the folder of a release; without it, install krew's with --archive.
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
for template in lethe.yaml kubectl-lethe.rb; do
  sed -e "s|{{ version }}|$version|" -e "s|{{ uri }}|${LETHE_RELEASE_URL:-file://$out}/$archive|" -e "s|{{ sha256 }}|$sha256|" \
    "$here/$template" > "$out/$template"
done
