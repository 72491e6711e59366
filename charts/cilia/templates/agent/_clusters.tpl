{{/* The file by which another cluster is read. Arguments: the cluster, the domain of all. */}}
{{- define "cilia.clusterFile" -}}
{{- $cluster := index . 0 -}}
{{- $host := printf "%s.%s" $cluster.name (index . 1) -}}
{{- if not $cluster.ips }}{{ $host = $cluster.address | default $host }}{{ end -}}
{{- $common := empty (include "cilia.clusterCertificates" $cluster | fromYaml) -}}
{{- $prefix := ternary "common-" (printf "%s." $cluster.name) $common -}}
endpoints:
- https://{{ $host }}:{{ $cluster.port | default 2379 }}
trusted-ca-file: /var/lib/cilium/clustermesh/{{ $prefix }}etcd-client-ca.crt
cert-file: /var/lib/cilium/clustermesh/{{ $prefix }}etcd-client.crt
key-file: /var/lib/cilium/clustermesh/{{ $prefix }}etcd-client.key
{{- end }}

{{/* A cluster's own certificates by file name, as they are in the values: base64. */}}
{{- define "cilia.clusterCertificates" -}}
{{- $name := .name -}}
{{- with .tls }}
{{- if and .cert .key }}
{{ $name }}.etcd-client.crt: {{ .cert }}
{{ $name }}.etcd-client.key: {{ .key }}
{{- with .caCert }}
{{ $name }}.etcd-client-ca.crt: {{ . }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* Names of other clusters that only their addresses in the values say. */}}
{{- define "cilia.clusterAliases" -}}
{{- $mesh := .Values.clustermesh.config -}}
{{- if $mesh.enabled }}
{{- range $cluster := $mesh.clusters }}
{{- range $cluster.ips }}
- ip: {{ . | quote }}
  hostnames: [{{ printf "%s.%s" $cluster.name $mesh.domain | quote }}]
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* The volume of those files, for agents and operators. */}}
{{- define "cilia.clusterVolume" -}}
# One file for each other cluster, and what is needed to reach them.
- name: clustermesh-secrets
  projected:
    # 0400, which not every reader of YAML takes for octal.
    defaultMode: 256
    sources:
      - secret:
          name: cilium-clustermesh
          optional: true
      # What clusters ask for that have no certificates of their own.
      - secret:
          name: clustermesh-apiserver-remote-cert
          optional: true
          items:
            - key: tls.key
              path: common-etcd-client.key
            - key: tls.crt
              path: common-etcd-client.crt
            - key: ca.crt
              path: common-etcd-client-ca.crt
{{- end }}
