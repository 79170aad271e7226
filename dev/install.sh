#!/usr/bin/env bash
# Install or upgrade Lethe in the cluster that stack.sh set up: install.sh [HELM-ARGUMENT...]
#
# The catalog `main` uses the PostgreSQL and S3 services; Datasets may be in the namespace `default`. Helm gets the credentials in a
# file that only this user can read and that is deleted afterwards. LETHE_WARM_DRIVERS=false: each run is a Job. LETHE_GATEWAY=false:
# no gateway. LETHE_EVENTS=true: status events go to the receiver of the demo. LETHE_INLET=true: an inlet reads the demo's broker.
source "$(dirname "$0")/lib.sh"

NAMESPACE=${LETHE_NAMESPACE:-lethe-system}
WATCH=${LETHE_WATCH:-default} # comma-separated
# shellcheck disable=SC1090,SC1091
source "$LETHE_LOADED"

ENVIRONMENT=$("$ROOT/dev/stack.sh" env)
eval "$ENVIRONMENT"

secret() { kubectl -n lethe-services get secret lethe-services -o "go-template={{.data.$1 | base64decode}}"; }

umask 077
values=$(mktemp)
trap 'rm -f "$values"' EXIT
cat > "$values" << V
image:
  operator: "$LETHE_OPERATOR_IMAGE"
  spark: "$LETHE_SPARK_IMAGE"
  pullPolicy: IfNotPresent
watchNamespaces: [${WATCH//,/, }]
resyncMaxSeconds: 15
warmDrivers:
  enabled: ${LETHE_WARM_DRIVERS:-true}
gateway:
  enabled: ${LETHE_GATEWAY:-true}
  service: {type: NodePort}
  uploads:
    # As this machine reaches the store.
    endpoints: {main: "$LETHE_S3_ENDPOINT"}
events:
  enabled: ${LETHE_EVENTS:-false}
  http: {url: "http://receiver.default:8080/"}
  retryMaxSeconds: 5
inlet:
  enabled: ${LETHE_INLET:-false}
  clusters:
    main:
      properties: {bootstrap.servers: "kafka.default:9092"}
catalogs:
  main:
    type: sql
    uri: "postgresql+psycopg2://$(secret POSTGRES_USER):$(secret POSTGRES_PASSWORD)@postgres.lethe-services:5432/lake"
    init_catalog_tables: "false"
    warehouse: s3://lake/warehouse
    s3.endpoint: http://s3.lethe-services:7070
    s3.access-key-id: "$(secret AWS_ACCESS_KEY_ID)"
    s3.secret-access-key: "$(secret AWS_SECRET_ACCESS_KEY)"
    s3.region: us-east-1
    s3.path-style-access: "true"
V
helm_unstick "$NAMESPACE" lethe
progress "installing Lethe into $NAMESPACE" helm upgrade --install lethe "$ROOT/helm/lethe" --namespace "$NAMESPACE" --create-namespace \
  --values "$ROOT/dev/small-cluster.yaml" --values "$values" --wait --timeout 3m "$@" \
  || { kubectl -n "$NAMESPACE" get pods; kubectl -n "$NAMESPACE" logs deploy/lethe-operator --tail=20; exit 1; } >&2
