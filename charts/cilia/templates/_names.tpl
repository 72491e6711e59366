{{- define "cilia.namespace" -}}
{{- .Values.namespaceOverride | default .Release.Namespace -}}
{{- end }}

{{/* Labels of every object. */}}
{{- define "cilia.labels" -}}
app.kubernetes.io/part-of: cilium
{{- with .Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "cilia.image" -}}
{{- with .image -}}
{{- if .override }}{{ .override }}{{ else -}}
{{ .repository }}{{ .suffix }}{{ with .tag }}:{{ . }}{{ end }}{{ if .useDigest }}@{{ $.digest }}{{ end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The class named by the user, else the critical one. Arguments: root, name, critical. */}}
{{- define "cilia.priorityClass" -}}
{{- if .name }}
priorityClassName: {{ .name }}
{{- else if .root.Values.enableCriticalPriorityClass }}
priorityClassName: {{ .critical }}
{{- end }}
{{- end }}

{{/* Host of probes: processes listen on loopback of the family that exists. */}}
{{- define "cilia.loopback" -}}
{{- if .Values.ipv4.enabled }}127.0.0.1{{ else }}::1{{ end -}}
{{- end }}

{{/* Where the API server is, for pods that start before any service is reachable. */}}
{{- define "cilia.apiServerEnv" -}}
{{- with .Values.k8sServiceHost }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
{{- end }}
{{- with .Values.k8sServicePort }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ . | quote }}
{{- end }}
{{- end }}
