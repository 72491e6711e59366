{{/*
Values that cannot work, each with the name of the value and what is allowed. What would leave traffic
unencrypted, unprotected or unserved is refused; whatever else isn't built yet is named in the notes.
*/}}
{{- define "cilia.guards" -}}
{{- $v := .Values -}}
{{- $notBuilt := "is not built yet" -}}
{{- if not (or $v.ipv4.enabled $v.ipv6.enabled) }}
{{- fail "ipv4.enabled, ipv6.enabled: at least one of the two must be true" }}
{{- end }}
{{- if and (eq $v.cluster.name "default") (ne (int $v.cluster.id) 0) }}
{{- fail (printf "cluster.name: choose a name other than \"default\" for cluster.id %d" (int $v.cluster.id)) }}
{{- end }}
{{- if $v.clustermesh.config.enabled }}
{{- range $index, $cluster := $v.clustermesh.config.clusters }}
{{- if not (regexMatch "^[a-z0-9]([-a-z0-9]{0,30}[a-z0-9])?$" ($cluster.name | default "")) }}
{{- fail (printf "clustermesh.config.clusters[%d].name: %q; at most 32 characters: lower-case letters, digits and dashes" $index ($cluster.name | default "")) }}
{{- end }}
{{- end }}
{{- end }}
{{- if not (has $v.ipam.mode (list "cluster-pool" "multi-pool" "kubernetes" "crd")) }}
{{- fail (printf "ipam.mode: %q %s; allowed: cluster-pool, multi-pool, kubernetes, crd" $v.ipam.mode $notBuilt) }}
{{- end }}
{{- if not (has $v.routingMode (list "" "tunnel")) }}
{{- fail (printf "routingMode: %q %s; allowed: tunnel" $v.routingMode $notBuilt) }}
{{- end }}
{{- if not (has $v.tunnelProtocol (list "" "vxlan")) }}
{{- fail (printf "tunnelProtocol: %q %s; allowed: vxlan" $v.tunnelProtocol $notBuilt) }}
{{- end }}
{{- if ne $v.bpf.datapathMode "veth" }}
{{- fail (printf "bpf.datapathMode: %q %s; allowed: veth" $v.bpf.datapathMode $notBuilt) }}
{{- end }}
{{- if not $v.bpf.enableTCX }}
{{- fail "bpf.enableTCX: programs are attached with tcx only; it must be true" }}
{{- end }}
{{- if not (has $v.identityAllocationMode (list "crd" "kvstore" "doublewrite-readkvstore" "doublewrite-readcrd")) }}
{{- fail (printf "identityAllocationMode: %q; allowed: crd, kvstore, doublewrite-readkvstore, doublewrite-readcrd" $v.identityAllocationMode) }}
{{- end }}
{{- if and (ne $v.identityAllocationMode "crd") (not $v.etcd.enabled) }}
{{- fail (printf "identityAllocationMode: %q needs a kvstore; set etcd.enabled and etcd.endpoints" $v.identityAllocationMode) }}
{{- end }}
{{- if not (has $v.identityManagementMode (list "agent" "operator" "both")) }}
{{- fail (printf "identityManagementMode: %q; allowed: agent, operator, both" $v.identityManagementMode) }}
{{- end }}
{{- if ne (toString $v.kubeProxyReplacement) "false" }}
{{- if ne (toString $v.kubeProxyReplacement) "" }}
{{- fail (printf "kubeProxyReplacement: %q %s; allowed: \"false\" (ClusterIP services are translated in eBPF all the same)" (toString $v.kubeProxyReplacement) $notBuilt) }}
{{- end }}
{{- end }}
{{- range list "encryption.enabled" "clustermesh.useAPIServer" "eni.enabled"
    "azure.enabled" "alibabacloud.enabled" "aksbyocni.enabled" "gke.enabled" "disableEndpointCRD" }}
{{- if eq (include "cilia.value" (dict "values" $v "path" .)) "true" }}
{{- fail (printf "%s: true %s; remove it or set it to false" . $notBuilt) }}
{{- end }}
{{- end }}
{{- range list "cni.chainingMode" "cni.chainingTarget" "cni.configMap" }}
{{- $value := include "cilia.value" (dict "values" $v "path" .) }}
{{- if not (has $value (list "" "\"\"" "null" "\"none\"")) }}
{{- fail (printf "%s: %s %s; remove it" . $value $notBuilt) }}
{{- end }}
{{- end }}
{{- range splitList "," ($v.daemon.configSources | default "config-map:cilium-config") }}
{{- if not (regexMatch "^(config-map:.+|(cilium-node-config|node)(:.*)?)$" .) }}
{{- fail (printf "daemon.configSources: %q is no source; allowed: config-map:[NAMESPACE/]NAME, cilium-node-config:[NAMESPACE][/NAME], node:[NAME]" .) }}
{{- end }}
{{- end }}
{{- if and $v.prometheus.serviceMonitor.enabled (not $v.prometheus.serviceMonitor.trustCRDsExist)
    (not (.Capabilities.APIVersions.Has "monitoring.coreos.com/v1")) }}
{{- fail "prometheus.serviceMonitor.enabled: the cluster has no monitoring.coreos.com/v1; install the Prometheus operator first, or set prometheus.serviceMonitor.trustCRDsExist" }}
{{- end }}
{{- end }}

{{/* A value by its dotted path as JSON; empty if it isn't there. Arguments: values, path. */}}
{{- define "cilia.value" -}}
{{- $node := .values -}}
{{- $found := true -}}
{{- range splitList "." .path -}}
{{- if and $found (kindIs "map" $node) (hasKey $node .) }}{{ $node = index $node . }}{{ else }}{{ $found = false }}{{ end -}}
{{- end -}}
{{- if $found }}{{ toJson $node }}{{ end -}}
{{- end }}
