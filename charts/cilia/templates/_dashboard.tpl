{{/* A ConfigMap with a Grafana dashboard. Arguments: root, name, file, dashboards (its values). */}}
{{- define "cilia.dashboard" -}}
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ .name }}
  namespace: {{ .dashboards.namespace | default (include "cilia.namespace" .root) }}
  labels:
    {{- include "cilia.labels" .root | nindent 4 }}
    {{- with .dashboards.label }}
    {{ . }}: {{ $.dashboards.labelValue | quote }}
    {{- end }}
  {{- with .dashboards.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
data:
  {{ .name }}.json: |
    {{- .root.Files.Get (printf "files/dashboards/%s.json" .file) | trim | nindent 4 }}
{{- end }}
