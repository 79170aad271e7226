#!/usr/bin/env bash
# Push the images, the chart and the OLM bundle of a release that dev/release.sh made to a registry, and sign them: publish.sh FOLDER REGISTRY
#
# Everything is pushed first and then signed by the digest that the registry has. dev/sign.sh says with what.
source "$(dirname "$0")/lib.sh"
folder=$(cd "$1" && pwd)
registry=$2
cd "$ROOT"

"$ROOT/dev/tools.sh" helm crane
version=$(python3 dev/release.py version)
[ -e "$folder/SHA256SUMS.sigstore.json" ] || "$ROOT/dev/sign.sh" files "$folder"

push() { # FILE REFERENCE
  progress "pushing $2" "$ROOT/dev/images.sh" push "$folder/$1" "$2"
}

push "lethe-operator-$version.tar" "$registry/lethe-operator:$version"
push "lethe-spark-$version.tar" "$registry/lethe-spark:$version"
push "olm-bundle-$version.tar" "$registry/lethe-olm-bundle:$version"
push artifacthub-repo.tar "$registry/charts/lethe:artifacthub.io"
progress "pushing the chart" helm push ${LETHE_REGISTRY_PLAIN_HTTP:+--plain-http} "$folder/lethe-$version.tgz" "oci://$registry/charts"

for name in lethe-operator lethe-spark lethe-olm-bundle charts/lethe; do
  digest=$(crane digest "$registry/$name:$version")
  sbom=$folder/$name-$version.spdx.json
  "$ROOT/dev/sign.sh" artifact "$registry/$name@$digest" "$folder/provenance.json" "$(if [ -e "$sbom" ]; then echo "$sbom"; fi)"
done
