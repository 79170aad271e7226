#!/usr/bin/env bash
# Sign what a release consists of with cosign: sign.sh files FOLDER | artifact REFERENCE PROVENANCE [SBOM]
#
# files      FOLDER/SHA256SUMS, and provenance.json as an attestation of every file in it
# artifact   an artifact in a registry, by its digest, with attestations of its provenance and of what it contains (SPDX)
#
# With a key in COSIGN_KEY (a file, whose password is COSIGN_PASSWORD, or what `cosign sign --key` takes) everything stays on this
# machine and in the registry. Without one, a workflow signs with its own identity, which Sigstore's public log records.
source "$(dirname "$0")/lib.sh"

if [ -n "${COSIGN_KEY:-}" ]; then
  [ ! -e "$COSIGN_KEY" ] || COSIGN_KEY=$(portable absolute "$COSIGN_KEY")
  identity=(--key "$COSIGN_KEY" --tlog-upload=false --use-signing-config=false)
elif [ -n "${ACTIONS_ID_TOKEN_REQUEST_URL:-}${SIGSTORE_ID_TOKEN:-}" ]; then
  identity=(--yes)
else
  die "nothing to sign with: set COSIGN_KEY, or run in a workflow with the permission id-token: write"
fi
"$ROOT/dev/tools.sh" cosign

files() { # FOLDER
  cd "$1"
  cosign sign-blob "${identity[@]}" --bundle SHA256SUMS.sigstore.json SHA256SUMS > /dev/null
  cosign attest-blob "${identity[@]}" --statement provenance.json --bundle provenance.sigstore.json > /dev/null
}

artifact() { # REFERENCE PROVENANCE [SBOM]
  local predicate
  predicate=$(mktemp)
  python3 -c 'import json, sys; json.dump(json.load(open(sys.argv[1]))["predicate"], sys.stdout)' "$2" > "$predicate"
  cosign sign "${identity[@]}" "$1"
  cosign attest "${identity[@]}" --type slsaprovenance1 --predicate "$predicate" "$1"
  rm "$predicate"
  [ -z "${3:-}" ] || cosign attest "${identity[@]}" --type spdxjson --predicate "$3" "$1"
}

case ${1:-} in
  files) progress "signing the files" files "$2" ;;
  artifact) progress "signing $2" artifact "$2" "$3" "${4:-}" ;;
  *) sed -n 2p "$0"; exit 2 ;;
esac
