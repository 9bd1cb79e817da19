{{- define "broker-filter.name" -}}
{{- if contains "broker-filter" .Release.Name -}}
{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}
{{ printf "%s-broker-filter" .Release.Name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end }}

{{- define "broker-filter.selector" -}}
app.kubernetes.io/name: broker-filter
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "broker-filter.pageSelector" -}}
app.kubernetes.io/name: broker-filter-page
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "broker-filter.labels" -}}
{{ include "broker-filter.selector" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{- define "broker-filter.serviceAccount" -}}
{{- if .Values.serviceAccount.create -}}
{{ .Values.serviceAccount.name | default (include "broker-filter.name" .) }}
{{- else -}}
{{ required "serviceAccount.name is needed where serviceAccount.create is false" .Values.serviceAccount.name }}
{{- end -}}
{{- end }}

{{- define "broker-filter.claim" -}}
{{- if .Values.snapshots.url -}}
{{- else if .Values.snapshots.existingClaim -}}
{{ .Values.snapshots.existingClaim }}
{{- else if .Values.snapshots.size -}}
{{ include "broker-filter.name" . }}-snapshots
{{- end -}}
{{- end }}

{{- /* Which settings are read from which keys of the login secret. */ -}}
{{- define "broker-filter.login" -}}
{{- with .Values.loginSecret }}
{{- if .name }}
{{- with .passwordKey }}
PASSWORD_FILE: {{ . | quote }}
{{- end }}
{{- with .clientSecretKey }}
CLIENT_SECRET_FILE: {{ . | quote }}
{{- end }}
{{- with .keyPasswordKey }}
KEY_PASSWORD_FILE: {{ . | quote }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
