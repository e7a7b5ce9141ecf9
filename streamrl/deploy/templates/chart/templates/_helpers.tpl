{{- define "streamrl.labels" -}}
app.kubernetes.io/name: streamrl
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end -}}

{{- define "streamrl.selector" -}}
app.kubernetes.io/name: streamrl
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end -}}

{{- define "streamrl.claim" -}}
{{ .Values.storage.existingClaim | default (printf "%s-home" .Release.Name) }}
{{- end -}}
