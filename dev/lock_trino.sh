#!/usr/bin/env bash
# Resolve the jars of a Trino server that reads Iceberg into dev/trino/jars.txt: lock_trino.sh VERSION
#
# Maven Central has had no archives of the server since version 476, but its libraries. It needs Maven, and a JDK of version 25 or later.
source "$(dirname "$0")/lib.sh"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

line() { # FOLDER PATH: of the list, for a jar with this path in a Maven repository
  local version=${2%/*} artifact group classifier
  artifact=${version%/*} group=${version%/*/*}
  version=${version##*/} artifact=${artifact##*/}
  classifier=${2##*/"$artifact-$version"}
  classifier=${classifier%.jar}
  echo "$1 ${group//\//.}:$artifact:$version${classifier/-/:} $(portable digest "$2")"
}

resolve() { # FOLDER ARTIFACT: where a server has the jars of this artifact
  mkdir -p "$work/$2"
  cat > "$work/$2/pom.xml" << P
<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <parent><groupId>io.trino</groupId><artifactId>trino-root</artifactId><version>$version</version><relativePath/></parent>
  <artifactId>resolved-$2</artifactId>
  <packaging>pom</packaging>
  <dependencies>
    <dependency><groupId>io.trino</groupId><artifactId>$2</artifactId><version>$version</version></dependency>
  </dependencies>
</project>
P
  (cd "$work/$2" && mvn -q -B dependency:copy-dependencies -DincludeScope=runtime -Dmdep.useRepositoryLayout=true \
    -DoutputDirectory="$work/$2/jars" > "$work/log" 2>&1) || die "$(cat "$work/log")"
  (cd "$work/$2/jars" && find ./* -name '*.jar' | LC_ALL=C sort | while read -r file; do line "$1" "${file#./}"; done)
}

version=$1
{
  echo "# Made by dev/lock_trino.sh $version: FOLDER GROUP:ARTIFACT:VERSION[:CLASSIFIER] SHA256"
  resolve lib trino-main
  resolve plugin/iceberg trino-iceberg
  resolve plugin/iceberg/hdfs trino-hdfs
} > "$work/jars.txt"
mv "$work/jars.txt" "$ROOT/dev/trino/jars.txt"
