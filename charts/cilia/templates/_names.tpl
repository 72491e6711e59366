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
{{- $host := .Values.k8sServiceHost }}
{{- $port := .Values.k8sServicePort }}
{{- if eq $host "auto" }}
{{- $server := include "cilia.clusterInfoServer" . | trim }}
{{- $host = regexReplaceAll "^https?://\\[?(.*?)\\]?(:[0-9]+)?/?$" $server "${1}" }}
{{- $port = regexFind ":[0-9]+/?$" $server | trimAll ":/" | default "443" }}
{{- end }}
{{- with $host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
{{- end }}
{{- with $port }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ . | quote }}
{{- end }}
{{- end }}

{{/* The API server's URL as kubeadm and others publish it. */}}
{{- define "cilia.clusterInfoServer" -}}
{{- $name := .Values.k8sServiceLookupConfigMapName | default "cluster-info" }}
{{- $namespace := .Values.k8sServiceLookupNamespace | default "kube-public" }}
{{- $map := lookup "v1" "ConfigMap" $namespace $name }}
{{- if not $map }}
{{- fail (printf "k8sServiceHost: \"auto\" needs ConfigMap %s/%s, which is not there; set k8sServiceHost and k8sServicePort" $namespace $name) }}
{{- end }}
{{- (index (fromYaml $map.data.kubeconfig).clusters 0).cluster.server }}
{{- end }}
