{{/* A ServiceMonitor. Arguments: root, name, selector, monitor (its values), scheme (http if there is none). */}}
{{- define "cilia.serviceMonitor" -}}
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ .name }}
  namespace: {{ include "cilia.namespace" .root }}
  labels:
    {{- include "cilia.labels" .root | nindent 4 }}
    {{- with .monitor.labels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with .monitor.annotations }}
  annotations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  {{- with .monitor.jobLabel }}
  jobLabel: {{ . }}
  {{- end }}
  selector:
    matchLabels:
      {{- toYaml .selector | nindent 6 }}
  namespaceSelector:
    matchNames:
      - {{ include "cilia.namespace" .root }}
  endpoints:
    - port: metrics
      interval: {{ .monitor.interval | quote }}
      {{- with .monitor.scrapeTimeout }}
      scrapeTimeout: {{ . | quote }}
      {{- end }}
      {{- with .scheme }}
      scheme: {{ . }}
      {{- end }}
      honorLabels: true
      path: /metrics
      {{- with .monitor.relabelings }}
      relabelings:
        {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with .monitor.metricRelabelings }}
      metricRelabelings:
        {{- toYaml . | nindent 8 }}
      {{- end }}
  targetLabels:
    - k8s-app
{{- end }}
