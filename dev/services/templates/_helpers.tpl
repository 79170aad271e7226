{{- define "podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ . }}
runAsGroup: {{ . }}
fsGroup: {{ . }}
seccompProfile: {type: RuntimeDefault}
{{- end }}
{{- define "containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}
{{- define "data" -}}
{{- if .root.Values.hostPath -}}
hostPath: {path: {{ .root.Values.hostPath }}/{{ .name }}, type: Directory}
{{- else -}}
emptyDir: {}
{{- end }}
{{- end }}
