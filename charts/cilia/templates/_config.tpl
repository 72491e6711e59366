{{/*
The data of ConfigMap cilium-config as YAML: a key per flag. extraConfig is merged over it, so a key
is never there twice.
*/}}
{{- define "cilia.config" -}}
{{- $v := .Values -}}
# Identities and endpoints
identity-allocation-mode: {{ $v.identityAllocationMode }}
{{- if $v.etcd.enabled }}
kvstore: etcd
kvstore-opt: '{"etcd.config": "/var/lib/etcd-config/etcd.config"}'
etcd-config: |-
  ---
  endpoints:
  {{- range $v.etcd.endpoints }}
    - {{ . }}
  {{- end }}
  {{- if $v.etcd.ssl }}
  trusted-ca-file: /var/lib/etcd-secrets/etcd-client-ca.crt
  key-file: /var/lib/etcd-secrets/etcd-client.key
  cert-file: /var/lib/etcd-secrets/etcd-client.crt
  {{- end }}
synchronize-k8s-nodes: {{ $v.synchronizeK8sNodes }}
{{- end }}
identity-management-mode: {{ $v.identityManagementMode }}
{{- with $v.identityChangeGracePeriod }}
identity-change-grace-period: {{ . | quote }}
{{- end }}
enable-well-known-identities: {{ $v.wellKnownIdentities.enabled }}
identity-heartbeat-timeout: {{ $v.operator.identityHeartbeatTimeout }}
identity-gc-interval: {{ $v.operator.identityGCInterval }}
cilium-endpoint-gc-interval: {{ $v.operator.endpointGCInterval }}
nodes-gc-interval: {{ $v.operator.nodeGCInterval }}
{{- with $v.labels }}
labels: {{ . | quote }}
{{- end }}
{{- if $v.ciliumEndpointSlice.enabled }}
enable-cilium-endpoint-slice: true
{{- with $v.ciliumEndpointSlice.rateLimits }}
ces-rate-limits: {{ toJson . | quote }}
{{- end }}
ces-adaptive-rate: {{ $v.ciliumEndpointSlice.adaptiveRate }}
{{- end }}
cluster-name: {{ $v.cluster.name | quote }}
cluster-id: {{ $v.cluster.id }}
max-connected-clusters: {{ $v.clustermesh.maxConnectedClusters }}
clustermesh-cache-ttl: {{ $v.clustermesh.cacheTTL }}
{{- with $v.conntrackGCInterval }}
conntrack-gc-interval: {{ . }}
{{- end }}
{{- with $v.conntrackGCMaxInterval }}
conntrack-gc-max-interval: {{ . }}
{{- end }}
# Logs and metrics
debug: {{ $v.debug.enabled }}
{{- with $v.logOptions }}
log-opt: {{ toJson . | quote }}
{{- end }}
{{- if ne (int $v.healthPort) 9879 }}
agent-health-port: {{ $v.healthPort }}
{{- end }}
{{- if $v.prometheus.enabled }}
prometheus-serve-addr: ":{{ $v.prometheus.port }}"
{{- with $v.prometheus.metrics }}
metrics: {{ join " " . | quote }}
{{- end }}
{{- end }}
{{- if $v.operator.prometheus.enabled }}
operator-prometheus-serve-addr: ":{{ $v.operator.prometheus.port }}"
enable-metrics: true
{{- with $v.operator.prometheus.tls }}
{{- if .enabled }}
operator-prometheus-enable-tls: true
operator-prometheus-tls-cert-file: /var/lib/cilium/tls/prometheus/server.crt
operator-prometheus-tls-key-file: /var/lib/cilium/tls/prometheus/server.key
{{- if .server.mtls.enabled }}
operator-prometheus-tls-client-ca-files: /var/lib/cilium/tls/prometheus/client-ca.crt
{{- end }}
{{- end }}
{{- end }}
{{- end }}
operator-api-serve-addr: {{ ternary "127.0.0.1:9234" "[::1]:9234" $v.ipv4.enabled | quote }}
# Kubernetes
{{- if $v.operator.skipCRDCreation }}
skip-crd-creation: true
{{- end }}
{{- with $v.kubeConfigPath }}
k8s-kubeconfig-path: {{ . | quote }}
{{- end }}
{{- with $v.k8sClientRateLimit }}
{{- if .qps }}
k8s-client-qps: {{ .qps }}
{{- end }}
{{- if .burst }}
k8s-client-burst: {{ .burst }}
{{- end }}
{{- if .operator.qps }}
operator-k8s-client-qps: {{ .operator.qps }}
{{- end }}
{{- if .operator.burst }}
operator-k8s-client-burst: {{ .operator.burst }}
{{- end }}
{{- end }}
agent-not-ready-taint-key: {{ $v.agentNotReadyTaintKey }}
{{- if $v.operator.removeNodeTaints }}
remove-cilium-node-taints: true
{{- end }}
{{- if eq (include "cilia.setNodeTaints" .) "true" }}
set-cilium-node-taints: true
{{- end }}
{{- if $v.operator.setNodeNetworkStatus }}
set-cilium-is-up-condition: true
{{- end }}
{{- $watcher := $v.operator.unmanagedPodWatcher }}
unmanaged-pod-watcher-interval: {{ ternary $watcher.intervalSeconds 0 $watcher.restart }}
{{- if not (kindIs "invalid" $watcher.selector) }}
pod-restart-selector: {{ $watcher.selector | quote }}
{{- end }}
# Addresses
enable-ipv4: {{ $v.ipv4.enabled }}
enable-ipv6: {{ $v.ipv6.enabled }}
ipam: {{ $v.ipam.mode }}
ipam-cilium-node-update-rate: {{ $v.ipam.ciliumNodeUpdateRate }}
{{- if and $v.ipam.multiPoolPreAllocation (eq $v.ipam.mode "multi-pool") }}
ipam-multi-pool-pre-allocation: {{ $v.ipam.multiPoolPreAllocation | quote }}
{{- end }}
{{- if and $v.ipam.operator.autoCreateCiliumPodIPPools (eq $v.ipam.mode "multi-pool") }}
auto-create-cilium-pod-ip-pools: {{ include "cilia.pools" $v.ipam.operator.autoCreateCiliumPodIPPools | quote }}
{{- end }}
{{- if and $v.ipv4.enabled (eq $v.ipam.mode "cluster-pool") }}
cluster-pool-ipv4-cidr: {{ join " " $v.ipam.operator.clusterPoolIPv4PodCIDRList | quote }}
cluster-pool-ipv4-mask-size: {{ $v.ipam.operator.clusterPoolIPv4MaskSize }}
{{- end }}
{{- if and $v.ipv6.enabled (eq $v.ipam.mode "cluster-pool") }}
cluster-pool-ipv6-cidr: {{ join " " $v.ipam.operator.clusterPoolIPv6PodCIDRList | quote }}
cluster-pool-ipv6-mask-size: {{ $v.ipam.operator.clusterPoolIPv6MaskSize }}
{{- end }}
# Datapath
routing-mode: {{ $v.routingMode | default "tunnel" }}
tunnel-protocol: {{ $v.tunnelProtocol | default "vxlan" }}
{{- with $v.tunnelPort }}
tunnel-port: {{ . }}
{{- end }}
{{- with $v.MTU }}
mtu: {{ . }}
{{- end }}
enable-ipv4-masquerade: {{ ternary true $v.enableIPv4Masquerade (kindIs "invalid" $v.enableIPv4Masquerade) }}
enable-ipv6-masquerade: {{ $v.enableIPv6Masquerade }}
{{- with $v.ipv4NativeRoutingCIDR }}
ipv4-native-routing-cidr: {{ . }}
{{- end }}
{{- with $v.ipv6NativeRoutingCIDR }}
ipv6-native-routing-cidr: {{ . | quote }}
{{- end }}
{{- with $v.egressMasqueradeInterfaces }}
egress-masquerade-interfaces: {{ ternary . (join " " .) (kindIs "string" .) | quote }}
{{- end }}
kube-proxy-replacement: {{ $v.kubeProxyReplacement | default "false" }}
datapath-mode: {{ $v.bpf.datapathMode }}
enable-tcx: {{ $v.bpf.enableTCX }}
bpf-root: {{ $v.bpf.root }}
procfs: /host/proc
bpf-map-dynamic-size-ratio: {{ $v.bpf.mapDynamicSizeRatio | default "0.0025" }}
bpf-policy-map-max: {{ $v.bpf.policyMapMax }}
bpf-lb-map-max: {{ $v.bpf.lbMapMax }}
{{- with $v.bpf.ctTcpMax }}
bpf-ct-global-tcp-max: {{ . }}
{{- end }}
{{- with $v.bpf.ctAnyMax }}
bpf-ct-global-any-max: {{ . }}
{{- end }}
{{- if $v.cleanState }}
clean-cilium-state: true
{{- end }}
{{- if $v.cleanBpfState }}
clean-cilium-bpf-state: true
{{- end }}
# Policy
enable-policy: {{ $v.policyEnforcementMode | lower }}
{{- if $v.policyAuditMode }}
policy-audit-mode: true
{{- end }}
enable-k8s-networkpolicy: {{ $v.k8sNetworkPolicy.enabled }}
enable-non-default-deny-policies: {{ $v.enableNonDefaultDenyPolicies }}
enable-node-selector-labels: {{ $v.nodeSelectorLabels }}
{{- if $v.hostFirewall.enabled }}
enable-host-firewall: true
{{- end }}
{{- with $v.policyCIDRMatchMode }}
policy-cidr-match-mode: {{ (kindIs "string" .) | ternary . (join " " .) | quote }}
{{- end }}
enable-sctp: {{ $v.sctp.enabled }}
# CNI
custom-cni-conf: {{ $v.cni.customConf }}
{{- if and $v.cni.install (not $v.cni.customConf) }}
write-cni-conf-when-ready: {{ $v.cni.hostConfDirMountPath }}/05-cilium.conflist
cni-exclusive: {{ $v.cni.exclusive }}
cni-log-file: {{ $v.cni.logFile }}
{{- end }}
{{- if $v.cni.uninstall }}
cni-uninstall: true
{{- end }}
{{- end }}

{{/* "true" if the operator puts the taint on nodes whose agent isn't ready. */}}
{{- define "cilia.setNodeTaints" -}}
{{- if kindIs "invalid" .Values.operator.setNodeTaints }}{{ .Values.operator.removeNodeTaints }}
{{- else }}{{ .Values.operator.setNodeTaints }}{{ end -}}
{{- end }}

{{/* The ConfigMap's data, every value a string. */}}
{{- define "cilia.configData" -}}
{{- range $key, $value := mustMergeOverwrite (include "cilia.config" . | fromYaml) .Values.extraConfig }}
{{ $key }}: {{ include "cilia.string" $value | quote }}
{{- end }}
{{- end }}

{{/* Numbers of values files are floats: print 1000000 as that, not as 1e+06. */}}
{{- define "cilia.string" -}}
{{- if and (kindIs "float64" .) (eq (floor .) .) }}{{ printf "%.0f" . }}{{ else }}{{ toString . }}{{ end -}}
{{- end }}

{{/* Pools as the flag auto-create-cilium-pod-ip-pools takes them. Argument: the value. */}}
{{- define "cilia.pools" -}}
{{- $pools := list -}}
{{- range $name, $pool := . -}}
{{- $parts := list -}}
{{- range $family := list "ipv4" "ipv6" -}}
{{- with index $pool $family -}}
{{- $parts = append $parts (printf "%s-cidrs:%s" $family (join "," .cidrs)) -}}
{{- $parts = append $parts (printf "%s-mask-size:%d" $family (int .maskSize)) -}}
{{- end -}}
{{- end -}}
{{- $pools = append $pools (printf "%s=%s" $name (join ";" $parts)) -}}
{{- end -}}
{{- join "," $pools -}}
{{- end }}
