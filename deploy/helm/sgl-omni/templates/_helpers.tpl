{{/* What all names begin with. The stateful set's name and its pods' suffixes have to fit into a label of 63. */}}
{{- define "sgl-omni.name" -}}
{{- $name := .Release.Name -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- $name | trunc 42 | trimSuffix "-" -}}
{{- end }}

{{/* What pods are found by. It must never change: selectors and volumes cannot. */}}
{{- define "sgl-omni.selector" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name | quote }}
{{- end }}

{{- define "sgl-omni.labels" -}}
{{ include "sgl-omni.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* Of pods: the sleep before SIGTERM, --drain-timeout, and some seconds to end. */}}
{{- define "sgl-omni.grace" -}}
{{ add .Values.drainTimeout 30 }}
{{- end }}
