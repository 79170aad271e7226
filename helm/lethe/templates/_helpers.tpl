{{- define "lethe.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 40 | trimSuffix "-" -}}
{{- end -}}

{{- /* "lethe-operator" for a release called lethe, "x-lethe-operator" for one called x. */ -}}
{{- define "lethe.operator" -}}
{{- $name := include "lethe.name" . -}}
{{- if contains $name .Release.Name -}}
{{- printf "%s-operator" (.Release.Name | trunc 54 | trimSuffix "-") -}}
{{- else -}}
{{- printf "%s-%s-operator" (.Release.Name | trunc 13 | trimSuffix "-") $name -}}
{{- end -}}
{{- end -}}

{{- /* The Deployment, the Lease and the budget of a shard {root, shard}. */ -}}
{{- define "lethe.operatorOf" -}}
{{- include "lethe.operator" .root -}}
{{- if gt (int .root.Values.shards) 1 -}}
-{{ .shard }}
{{- end -}}
{{- end -}}

{{- /* What distinguishes the pods of a shard {root, shard}; empty if there is one. */ -}}
{{- define "lethe.shardLabel" -}}
{{- if gt (int .root.Values.shards) 1 -}}
lethe.dev/shard: {{ .shard | quote }}
{{- end -}}
{{- end -}}

{{- /* The reference of an image {root, of}: without a tag or a digest, it gets the version of the chart's application. */ -}}
{{- define "lethe.image" -}}
{{- $name := index .root.Values.image .of -}}
{{- if or (contains "@" $name) (contains ":" (last (splitList "/" $name))) -}}
{{- $name -}}
{{- else -}}
{{- printf "%s:%s" $name .root.Chart.AppVersion -}}
{{- end -}}
{{- end -}}

{{- define "lethe.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{- default (include "lethe.operator" .) .Values.serviceAccount.name -}}
{{- else -}}
{{- required "serviceAccount.name is required when serviceAccount.create is false" .Values.serviceAccount.name -}}
{{- end -}}
{{- end -}}

{{- /* The Role of drivers with executors, in each watched namespace; the operator binds it by this name. */ -}}
{{- define "lethe.scaledRuns" -}}
lethe-scaled-runs
{{- end -}}

{{- /* The objects of the committer of a watched namespace. */ -}}
{{- define "lethe.committer" -}}
lethe-committer
{{- end -}}

{{- define "lethe.committerSelector" -}}
app.kubernetes.io/name: {{ include "lethe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: committer
{{- end -}}

{{- define "lethe.committerLabels" -}}
{{ include "lethe.committerSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The objects of the inlet of a watched namespace. */ -}}
{{- define "lethe.inlet" -}}
lethe-inlet
{{- end -}}

{{- define "lethe.inletSelector" -}}
app.kubernetes.io/name: {{ include "lethe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: inlet
{{- end -}}

{{- define "lethe.inletLabels" -}}
{{ include "lethe.inletSelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The Secret with the Kafka clusters, in each watched namespace. */ -}}
{{- define "lethe.kafkaSecret" -}}
{{- default "lethe-kafka" .Values.inlet.existingSecret -}}
{{- end -}}

{{- /* The Kafka clusters of a watched namespace {root, namespace}. */ -}}
{{- define "lethe.kafkaFileOf" -}}
{{- $namespace := .namespace -}}
{{- $boundary := include "lethe.boundary" . | fromYaml -}}
{{- $topics := dict -}}
{{- if hasKey $boundary "topics" -}}
{{- $_ := set $topics "topics" $boundary.topics -}}
{{- end -}}
{{- $found := dict -}}
{{- range $name, $cluster := .root.Values.inlet.clusters -}}
{{- if or (not $cluster.namespaces) (has $namespace $cluster.namespaces) -}}
{{- $_ := set $found $name (merge (deepCopy $topics) (omit $cluster "namespaces")) -}}
{{- end -}}
{{- end -}}
{{ dict "clusters" $found | toYaml }}
{{- end -}}

{{- /* The objects of the gateway: "lethe-gateway" for a release called lethe. */ -}}
{{- define "lethe.gateway" -}}
{{- printf "%s-gateway" (trimSuffix "-operator" (include "lethe.operator" .)) -}}
{{- end -}}

{{- define "lethe.gatewaySelector" -}}
app.kubernetes.io/name: {{ include "lethe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: gateway
{{- end -}}

{{- define "lethe.gatewayLabels" -}}
{{ include "lethe.gatewaySelector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The objects of the warm driver of a watched namespace. The operator starts its Job. */ -}}
{{- define "lethe.warmDriver" -}}
lethe-warm-driver
{{- end -}}

{{- /* The labels by which the operator marks the pods of warm drivers, whatever the chart's values are. */ -}}
{{- define "lethe.warmDriverSelector" -}}
app.kubernetes.io/name: lethe
app.kubernetes.io/component: warm-driver
{{- end -}}

{{- define "lethe.warmDriverLabels" -}}
app.kubernetes.io/name: {{ include "lethe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: warm-driver
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- define "lethe.selector" -}}
app.kubernetes.io/name: {{ include "lethe.name" . }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "lethe.labels" -}}
{{ include "lethe.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end -}}

{{- /* The operator's .pyiceberg.yaml, with all catalogs. PyIceberg reads it from $PYICEBERG_HOME. */ -}}
{{- define "lethe.catalogsFile" -}}
{{ include "lethe.pyiceberg" .Values.catalogs }}
{{- end -}}

{{- /* A .pyiceberg.yaml with these catalogs. PyIceberg's parser refuses `{}`. */ -}}
{{- define "lethe.pyiceberg" -}}
{{ if . }}{{ dict "catalog" . | toYaml }}{{ else }}catalog:{{ end }}
{{- end -}}

{{- /* The boundary of {root, namespace}, as YAML: its own entry, or the default. */ -}}
{{- define "lethe.boundary" -}}
{{- $all := .root.Values.boundaries -}}
{{- if hasKey $all.namespaces .namespace -}}
{{ index $all.namespaces .namespace | default dict | toYaml }}
{{- else -}}
{{ $all.default | default dict | toYaml }}
{{- end -}}
{{- end -}}

{{- /* The .pyiceberg.yaml for the runs of {root, namespace}: only its catalogs, with its own credentials. */ -}}
{{- define "lethe.catalogsFileOf" -}}
{{- $boundary := include "lethe.boundary" . | fromYaml -}}
{{- $found := dict -}}
{{- range $name, $properties := .root.Values.catalogs -}}
{{- if or (not (hasKey $boundary "catalogs")) (has $name $boundary.catalogs) -}}
{{- $own := index (default dict $boundary.credentials) $name | default dict -}}
{{- $merged := dict -}}
{{- range $key, $value := $properties -}}
{{- if not (hasKey $own $key) -}}
{{- $_ := set $merged $key $value -}}
{{- end -}}
{{- end -}}
{{- /* An empty value removes the property. */ -}}
{{- range $key, $value := $own -}}
{{- if ne (toString $value) "" -}}
{{- $_ := set $merged $key $value -}}
{{- end -}}
{{- end -}}
{{- $_ := set $found $name $merged -}}
{{- end -}}
{{- end -}}
{{ include "lethe.pyiceberg" $found }}
{{- end -}}

{{- /* The Secret with the catalogs of {root, namespace}. */ -}}
{{- define "lethe.catalogsSecretOf" -}}
{{- $boundary := include "lethe.boundary" . | fromYaml -}}
{{- default .root.Values.catalogsSecret.name $boundary.catalogsSecret -}}
{{- end -}}

{{- /* The file of boundaries that the operator reads. It contains no credentials: these are only in Secrets. */ -}}
{{- define "lethe.boundariesFile" -}}
{{- $namespaces := dict -}}
{{- range $name, $boundary := .Values.boundaries.namespaces -}}
{{- $_ := set $namespaces $name (omit (default dict $boundary) "credentials") -}}
{{- end -}}
{{ dict "default" (omit (default dict .Values.boundaries.default) "credentials") "namespaces" $namespaces | toYaml }}
{{- end -}}

{{- /* Refuse mistakes in boundaries: they could leave a namespace without a boundary. */ -}}
{{- define "lethe.checkBoundaries" -}}
{{- range $name, $_ := .Values.boundaries.namespaces -}}
{{- if not (has $name $.Values.watchNamespaces) -}}
{{- fail (printf "boundaries.namespaces.%s: %q is not among watchNamespaces (%s). Correct the name, or watch the namespace." $name $name (join ", " $.Values.watchNamespaces)) -}}
{{- end -}}
{{- end -}}
{{- $all := dict "default" (default dict .Values.boundaries.default) -}}
{{- range $name, $boundary := .Values.boundaries.namespaces -}}
{{- $_ := set $all (printf "namespaces.%s" $name) (default dict $boundary) -}}
{{- end -}}
{{- range $where, $boundary := $all -}}
{{- if $.Values.catalogsSecret.create -}}
{{- range $boundary.catalogs -}}
{{- if and (not (hasKey $.Values.catalogs .)) (not $boundary.catalogsSecret) -}}
{{- fail (printf "boundaries.%s.catalogs names %q, which is not one of the value catalogs (%s)." $where . (keys $.Values.catalogs | sortAlpha | join ", ")) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $catalog, $own := $boundary.credentials -}}
{{- if or (hasKey $own "type") (hasKey $own "warehouse") -}}
{{- fail (printf "boundaries.%s.credentials.%s sets type or warehouse: the operator and the runs would use different tables. Set only properties of credentials." $where $catalog) -}}
{{- end -}}
{{- if or $boundary.catalogsSecret (not $.Values.catalogsSecret.create) -}}
{{- fail (printf "boundaries.%s.credentials has no effect: the chart does not create the Secret of these catalogs. Put the credentials into that Secret." $where) -}}
{{- end -}}
{{- if or (not (hasKey $.Values.catalogs $catalog)) (and (hasKey $boundary "catalogs") (not (has $catalog $boundary.catalogs))) -}}
{{- fail (printf "boundaries.%s.credentials names %q, which is not one of this boundary's catalogs." $where $catalog) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{- /* Pods of runs in the same namespace with these roles. */ -}}
{{- define "lethe.sparkPeers" -}}
from:
- podSelector:
    matchExpressions:
    - {key: lethe.dev/role, operator: In, values: [{{ . }}]}
{{- end -}}

{{- /* The ports that the operator sets: a driver's RPC, and the blocks of drivers and executors. */ -}}
{{- define "lethe.sparkPorts" -}}
- {port: 7078}
- {port: 7079}
{{- end -}}

{{- /* The entry of a list of incoming connections that lets Prometheus read metrics; empty if none are served. */ -}}
{{- define "lethe.metricsIngress" -}}
{{- if .Values.metrics.enabled -}}
- ports:
  - {port: metrics}
  {{- with .Values.networkPolicy.metricsFrom }}
  from: {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end -}}
{{- end -}}

{{- /* Allowed outgoing connections of all Lethe's pods, if they are restricted. */ -}}
{{- define "lethe.egress" -}}
- to: {{- toYaml .egress.dns | nindent 2 }}
  ports:
  - {port: 53, protocol: UDP}
  - {port: 53, protocol: TCP}
{{- if .apiServer }}
- ports:
  {{- range .egress.apiServer.ports }}
  - {port: {{ . }}}
  {{- end }}
  {{- with .egress.apiServer.to }}
  to: {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}
{{- with .egress.rules }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- /* Refuse values that cannot work here, so that no pod fails to start because of them. */ -}}
{{- define "lethe.check" -}}
{{- if has .Release.Namespace .Values.watchNamespaces -}}
{{- fail (printf "watchNamespaces contains %q, the namespace of this release. Runs start in the watched namespaces, and users who may write a Dataset can start pods there, so the operator must be in another namespace: install with --namespace lethe-system, or remove %q from watchNamespaces." .Release.Namespace .Release.Namespace) -}}
{{- end -}}
{{- if ne (len .Values.watchNamespaces) (len (uniq .Values.watchNamespaces)) -}}
{{- fail "watchNamespaces names a namespace twice. Remove one of the entries." -}}
{{- end -}}
{{- if hasKey .Values "sharedRuns" -}}
{{- fail "sharedRuns is not a value of this chart. Set warmDrivers.enabled=true: a driver that stays up carries out small runs." -}}
{{- end -}}
{{- range $name, $properties := .Values.catalogs -}}
{{- if not $properties -}}
{{- fail (printf "catalogs.%s has no properties. Set at least type and uri." $name) -}}
{{- end -}}
{{- end -}}
{{- include "lethe.checkBoundaries" . -}}
{{- with .Values.events -}}
{{- if and .http .kafka -}}
{{- fail "events.http and events.kafka are both set. Set one of them to null." -}}
{{- end -}}
{{- if and .enabled (not (or .http .kafka .openLineage)) -}}
{{- fail "events.enabled is true, and there is nothing to publish to. Set events.http, events.kafka or events.openLineage." -}}
{{- end -}}
{{- end -}}
{{- if and .Values.catalogs (not .Values.catalogsSecret.create) -}}
{{- fail (printf "catalogs is set, but catalogsSecret.create is false, so it has no effect. Put the catalogs into the Secret %q yourself, or let the chart create it." .Values.catalogsSecret.name) -}}
{{- end -}}
{{- end -}}

{{- /* Whether a request sets an annotation to another value. Everyone may remove it, because that only withdraws a permission. */ -}}
{{- define "lethe.admissionAnnotation" -}}
object.metadata.?annotations[?'{{ . }}'].orValue('') != '' && (oldObject == null || oldObject.metadata.?annotations[?'{{ . }}'].orValue('') != object.metadata.annotations['{{ . }}'])
{{- end -}}

{{- /*
A ValidatingAdmissionPolicy with its binding to the watched namespaces.
  name, value: of the policy, and of the chart's value that it comes from
  allowed: {groups, users}
  resources, wants, what: the requests it looks at, as a CEL condition and as a verb phrase
  operations, subject: the operations, by default CREATE and UPDATE, and where the condition finds the object: object or oldObject
*/ -}}
{{- define "lethe.admissionPolicy" -}}
{{- $groups := default (list) .allowed.groups }}
{{- $users := default (list) .allowed.users }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels: {{- include "lethe.labels" .root | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [lethe.dev]
      apiVersions: ["*"]
      operations: {{ default (list "CREATE" "UPDATE") .operations | toJson }}
      resources: {{ .resources | toJson }}
  matchConditions:
  - name: restricted
    expression: {{ .wants | quote }}
  validations:
  - expression: {{ printf "request.userInfo.username in %s || request.userInfo.?groups.orValue([]).exists(g, g in %s)" ($users | toJson) ($groups | toJson) | quote }}
    reason: Forbidden
    messageExpression: {{ printf "request.resource.resource + ' ' + %s.metadata.name + ': ' + request.userInfo.username + ' may not %s. Allowed are %s (%s in the values of the Helm release %s). Ask one of them to apply it.'" (default "object" .subject) .what (include "lethe.admissionAllowed" (dict "groups" $groups "users" $users)) .value .root.Release.Name | quote }}
---
{{ include "lethe.admissionBinding" . }}
{{- end -}}

{{- /* Binds the policy of the same name to the watched namespaces. */ -}}
{{- define "lethe.admissionBinding" -}}
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicyBinding
metadata:
  name: {{ .name }}
  labels: {{- include "lethe.labels" .root | nindent 4 }}
spec:
  policyName: {{ .name }}
  validationActions: [Deny, Audit]
  matchResources:
    namespaceSelector:
      matchExpressions:
      - key: kubernetes.io/metadata.name
        operator: In
        values: {{ .root.Values.watchNamespaces | toJson }}
{{- end -}}

{{- /* The operator as a user of the API server. */ -}}
{{- define "lethe.operatorUser" -}}
system:serviceaccount:{{ .Release.Namespace }}:{{ include "lethe.serviceAccount" . }}
{{- end -}}

{{- /* What the names of policies and of the roles of users begin with. They are not in a namespace. */ -}}
{{- define "lethe.admissionPrefix" -}}
{{- printf "%s-%s" .Release.Namespace (include "lethe.operator" . | trimSuffix "-operator") -}}
{{- end -}}

{{- /*
A ValidatingAdmissionPolicy about Restatements with its binding to the watched namespaces.
  name, spec: of the policy; its operations are CREATE and UPDATE
*/ -}}
{{- define "lethe.restatementPolicy" }}
---
apiVersion: admissionregistration.k8s.io/v1
kind: ValidatingAdmissionPolicy
metadata:
  name: {{ .name }}
  labels: {{- include "lethe.labels" .root | nindent 4 }}
spec:
  failurePolicy: Fail
  matchConstraints:
    resourceRules:
    - apiGroups: [lethe.dev]
      apiVersions: ["*"]
      operations: [CREATE, UPDATE]
      resources: [restatements]
  {{- .spec | nindent 2 }}
---
{{ include "lethe.admissionBinding" . }}
{{- end -}}

{{- define "lethe.admissionAllowed" -}}
{{- $all := list -}}
{{- range .groups }}{{ $all = append $all (printf "the group %s" .) }}{{ end -}}
{{- range .users }}{{ $all = append $all (printf "the user %s" .) }}{{ end -}}
{{- join ", " $all -}}
{{- end -}}

{{- /* Without groups and users, the action would be forbidden for everyone, which is probably a mistake. */ -}}
{{- define "lethe.checkAdmission" -}}
{{- range $action := list "erase" "approveVacuum" "acceptHead" "holds" -}}
{{- $allowed := index $.Values.admission $action -}}
{{- if not (or $allowed.groups $allowed.users) -}}
{{- fail (printf "admission.enabled is true, but admission.%s names no group and no user. Name those who may do it, or the group system:authenticated to leave it to RBAC." $action) -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The default run template as JSON. An empty queue is no queue. */}}
{{- define "lethe.runTemplate" -}}
{{- if and (eq .Values.runTemplate.launcher "SparkApplication") (not .Values.sparkOperator.enabled) -}}
{{- fail "runTemplate.launcher is SparkApplication: install the Kubeflow Spark operator and set sparkOperator.enabled=true" -}}
{{- end -}}
{{- $template := .Values.runTemplate -}}
{{- if not $template.queue }}{{ $template = omit $template "queue" }}{{ end -}}
{{- toJson $template -}}
{{- end }}

{{/* Variables of OpenTelemetry's SDK. The operator passes them on to runs. */}}
{{- define "lethe.tracing" -}}
{{- if .Values.tracing.endpoint }}
- name: OTEL_EXPORTER_OTLP_ENDPOINT
  value: {{ .Values.tracing.endpoint | quote }}
- name: OTEL_TRACES_SAMPLER
  value: parentbased_traceidratio
- name: OTEL_TRACES_SAMPLER_ARG
  value: {{ .Values.tracing.ratio | quote }}
{{- end }}
{{- end }}
