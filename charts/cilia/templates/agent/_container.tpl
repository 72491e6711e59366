{{/* The container cilium-agent. */}}
{{- define "cilia.agent.container" -}}
{{- $v := .Values -}}
- name: cilium-agent
  image: {{ include "cilia.image" (dict "image" $v.image "digest" $v.image.digest) | quote }}
  imagePullPolicy: {{ $v.image.pullPolicy }}
  command:
    - /usr/bin/cilia-agent
  args:
    - --config-dir=/tmp/cilium/config-map
    {{- with $v.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  startupProbe:
    {{- include "cilia.agent.probe" (dict "root" . "brief" true) | nindent 4 }}
    initialDelaySeconds: 1
    failureThreshold: {{ $v.startupProbe.failureThreshold }}
    periodSeconds: {{ $v.startupProbe.periodSeconds }}
    successThreshold: 1
  livenessProbe:
    {{- include "cilia.agent.probe" (dict "root" . "requireK8s" $v.livenessProbe.requireK8sConnectivity "live" true) | nindent 4 }}
    failureThreshold: {{ $v.livenessProbe.failureThreshold }}
    periodSeconds: {{ $v.livenessProbe.periodSeconds }}
    successThreshold: 1
    timeoutSeconds: 5
  readinessProbe:
    {{- include "cilia.agent.probe" (dict "root" .) | nindent 4 }}
    failureThreshold: {{ $v.readinessProbe.failureThreshold }}
    periodSeconds: {{ $v.readinessProbe.periodSeconds }}
    successThreshold: 1
    timeoutSeconds: 5
  env:
    - name: K8S_NODE_NAME
      valueFrom:
        fieldRef:
          apiVersion: v1
          fieldPath: spec.nodeName
    - name: CILIUM_K8S_NAMESPACE
      valueFrom:
        fieldRef:
          apiVersion: v1
          fieldPath: metadata.namespace
    - name: CILIUM_CLUSTERMESH_CONFIG
      value: /var/lib/cilium/clustermesh/
    {{- include "cilia.apiServerEnv" . | trim | nindent 4 }}
    {{- with $v.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if $v.cni.install }}
  {{- if $v.cni.uninstall }}
  lifecycle:
    preStop:
      exec:
        command: [/bin/busybox, rm, -f, {{ $v.cni.hostConfDirMountPath }}/05-cilium.conflist]
  {{- end }}
  {{- end }}
  {{- with $v.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if $v.prometheus.enabled }}
  ports:
    - name: prometheus
      containerPort: {{ $v.prometheus.port }}
      hostPort: {{ $v.prometheus.port }}
      protocol: TCP
  {{- end }}
  securityContext:
    {{- include "cilia.agent.securityContext" (dict "root" . "capabilities" $v.securityContext.capabilities.ciliumAgent) | trim | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    {{- if include "cilia.agent.mountedConfig" . }}
    - name: cilium-config-path
      mountPath: /tmp/cilium/config-map
      readOnly: true
    {{- end }}
    - name: clustermesh-secrets
      mountPath: /var/lib/cilium/clustermesh
      readOnly: true
    {{- include "cilia.etcdMounts" . | trim | nindent 4 }}
    - name: tmp
      mountPath: /tmp
    - name: cilium-run
      mountPath: /var/run/cilium
    - name: cilium-netns
      mountPath: /var/run/cilium/netns
      mountPropagation: HostToContainer
    - name: bpf-maps
      mountPath: /sys/fs/bpf
      mountPropagation: HostToContainer
    - name: host-proc-sys-net
      mountPath: /host/proc/sys/net
    - name: host-proc-sys-kernel
      mountPath: /host/proc/sys/kernel
    {{- if $v.cni.install }}
    - name: etc-cni-netd
      mountPath: {{ $v.cni.hostConfDirMountPath }}
    {{- end }}
    {{- with $v.kubeConfigPath }}
    - name: kube-config
      mountPath: {{ . }}
      readOnly: true
    {{- end }}
    {{- range $v.extraHostPathMounts }}
    - name: {{ .name }}
      mountPath: {{ .mountPath }}
      readOnly: {{ .readOnly | default false }}
      {{- with .mountPropagation }}
      mountPropagation: {{ . }}
      {{- end }}
    {{- end }}
    {{- with $v.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{/* Nothing that is not listed; never privileged. Arguments: root, capabilities. */}}
{{- define "cilia.agent.securityContext" -}}
{{- with .root.Values.securityContext.seLinuxOptions }}
seLinuxOptions:
  {{- toYaml . | nindent 2 }}
{{- end }}
allowPrivilegeEscalation: {{ .root.Values.securityContext.allowPrivilegeEscalation }}
capabilities:
  {{- with .capabilities }}
  add:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  drop: [ALL]
{{- end }}

{{/* Arguments: root; live for the liveness probe, with requireK8s. */}}
{{- define "cilia.agent.probe" -}}
httpGet:
  host: {{ include "cilia.loopback" .root | quote }}
  path: /healthz
  port: {{ .root.Values.healthPort }}
  scheme: HTTP
  httpHeaders:
    - name: brief
      value: "true"
    {{- if .live }}
    - name: require-k8s-connectivity
      value: {{ .requireK8s | quote }}
    {{- end }}
{{- end }}
