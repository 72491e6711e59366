{{- define "cilia.operator.labels" -}}
io.cilium/app: operator
name: cilium-operator
app.kubernetes.io/name: cilium-operator
{{- end }}

{{- define "cilia.operator.container" -}}
{{- $v := .Values -}}
- name: cilium-operator
  image: {{ include "cilia.image" (dict "image" $v.operator.image "digest" $v.operator.image.genericDigest) | quote }}
  imagePullPolicy: {{ $v.operator.image.pullPolicy }}
  command:
    - /usr/bin/cilia-operator
  args:
    - --config-dir=/tmp/cilium/config-map
    - --debug=$(CILIUM_DEBUG)
    {{- with $v.operator.extraArgs }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
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
    - name: CILIUM_DEBUG
      valueFrom:
        configMapKeyRef:
          name: cilium-config
          key: debug
          optional: true
    # Memory that is free goes back to the node at once: a sixth less at rest for as much more CPU.
    - name: GLIBC_TUNABLES
      value: glibc.malloc.mmap_threshold=131072:glibc.malloc.trim_threshold=131072:glibc.malloc.arena_max=1
    {{- if $v.clustermesh.config.enabled }}
    - name: CILIUM_CLUSTERMESH_CONFIG
      value: /var/lib/cilium/clustermesh/
    {{- end }}
    {{- include "cilia.apiServerEnv" . | trim | nindent 4 }}
    {{- with $v.operator.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- if $v.operator.prometheus.enabled }}
  ports:
    - name: prometheus
      containerPort: {{ $v.operator.prometheus.port }}
      {{- if $v.operator.hostNetwork }}
      hostPort: {{ $v.operator.prometheus.port }}
      {{- end }}
      protocol: TCP
  {{- end }}
  livenessProbe:
    {{- include "cilia.operator.probe" . | nindent 4 }}
    initialDelaySeconds: 60
    periodSeconds: 10
    timeoutSeconds: 3
  readinessProbe:
    {{- include "cilia.operator.probe" . | nindent 4 }}
    initialDelaySeconds: 0
    periodSeconds: 5
    timeoutSeconds: 3
    failureThreshold: 5
  {{- with $v.operator.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- toYaml $v.operator.securityContext | nindent 4 }}
  terminationMessagePolicy: FallbackToLogsOnError
  volumeMounts:
    - name: cilium-config-path
      mountPath: /tmp/cilium/config-map
      readOnly: true
    {{- include "cilia.etcdMounts" . | trim | nindent 4 }}
    {{- if $v.clustermesh.config.enabled }}
    - name: clustermesh-secrets
      mountPath: /var/lib/cilium/clustermesh
      readOnly: true
    {{- end }}
    {{- with $v.kubeConfigPath }}
    - name: kube-config
      mountPath: {{ . }}
      readOnly: true
    {{- end }}
    {{- if and $v.operator.prometheus.enabled $v.operator.prometheus.tls.enabled }}
    - name: prometheus-tls
      mountPath: /var/lib/cilium/tls/prometheus
      readOnly: true
    {{- end }}
    {{- range $v.operator.extraHostPathMounts }}
    - name: {{ .name }}
      mountPath: {{ .mountPath }}
      readOnly: {{ .readOnly | default false }}
      {{- with .mountPropagation }}
      mountPropagation: {{ . }}
      {{- end }}
    {{- end }}
    {{- with $v.operator.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "cilia.operator.probe" -}}
httpGet:
  {{- if .Values.operator.hostNetwork }}
  host: {{ include "cilia.loopback" . | quote }}
  {{- end }}
  path: /healthz
  port: 9234
  scheme: HTTP
{{- end }}
