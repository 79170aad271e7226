#!/bin/bash
# What a container of the Spark image does: `driver` runs one of Lethe's applications, `executor` serves a driver, `committer`
# carries out what needs no Spark, and anything else is run as it stands. tini is process 1, so that SIGTERM reaches the
# program and no orphan is left unreaped.
set -euo pipefail

case ${1:-} in
  driver)
    shift
    exec tini -- python -m lethe_spark.app "$@"
    ;;
  committer)
    shift
    exec tini -- python -m lethe_spark.committer "$@"
    ;;
  executor)
    # The driver hands over the JVM's options as SPARK_JAVA_OPT_0, SPARK_JAVA_OPT_1, ...
    options=()
    while IFS= read -r -d '' entry; do
      if [[ $entry == SPARK_JAVA_OPT_* ]]; then options+=("${entry#*=}"); fi
    done < <(env -0 | sort -zV)
    # As lethe_spark.launching has them: an archive of classes is for the same jars in the same order.
    LC_ALL=C
    jars=("$SPARK_HOME"/jars/*.jar)
    options+=("-XX:SharedArchiveFile=$SPARK_HOME/jars/classes.jsa" -Xlog:cds=off -Xlog:cds+dynamic=off)
    exec tini -- java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
      -cp "$(IFS=:; echo "${jars[*]}:${SPARK_CONF_DIR:-/opt/lethe/conf}")" \
      org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
      --driver-url "$SPARK_DRIVER_URL" --executor-id "$SPARK_EXECUTOR_ID" --cores "$SPARK_EXECUTOR_CORES" \
      --app-id "$SPARK_APPLICATION_ID" --hostname "$SPARK_EXECUTOR_POD_IP" \
      --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" --podName "$SPARK_EXECUTOR_POD_NAME"
    ;;
  *)
    exec tini -- "$@"
    ;;
esac
