{{/*
The agent's init containers. Each does one thing to the node, with the capabilities of just that;
those that need a program on the host bring busybox along, so nothing is expected of the host.
*/}}
{{- define "cilia.agent.initContainers" -}}
{{- $v := .Values -}}
{{- if not (include "cilia.agent.mountedConfig" .) }}
{{ include "cilia.agent.configContainer" . | trim }}
{{- end }}
{{- if $v.sysctlfix.enabled }}
{{ include "cilia.agent.onHost" (dict "root" . "name" "apply-sysctl-overwrites"
    "capabilities" $v.securityContext.capabilities.applySysctlOverwrites "script" (include "cilia.agent.sysctls" .)) }}
{{- end }}
{{- if $v.bpf.autoMount.enabled }}
{{ include "cilia.agent.onHost" (dict "root" . "name" "mount-bpf-fs"
    "capabilities" $v.securityContext.capabilities.mountBpfFs "script" (include "cilia.agent.mountBpf" .)) }}
{{- end }}
- name: clean-cilium-state
  {{- include "cilia.agent.initImage" . | nindent 2 }}
  command: [/bin/busybox, sh, -euc]
  args:
    - |
      if [ "${CILIUM_ALL_STATE:-}" = true ]; then
        /bin/busybox rm -rf /var/run/cilium/state /var/run/cilium/deleteQueue
      fi
      if [ "${CILIUM_ALL_STATE:-}" = true ] || [ "${CILIUM_BPF_STATE:-}" = true ]; then
        /bin/busybox rm -rf /sys/fs/bpf/cilium /sys/fs/bpf/tc/globals/cilium_*
      fi
  env:
    {{- range $name, $key := dict "CILIUM_ALL_STATE" "clean-cilium-state" "CILIUM_BPF_STATE" "clean-cilium-bpf-state" }}
    - name: {{ $name }}
      valueFrom:
        configMapKeyRef:
          name: cilium-config
          key: {{ $key }}
          optional: true
    {{- end }}
  securityContext:
    {{- include "cilia.agent.securityContext" (dict "root" . "capabilities" $v.securityContext.capabilities.cleanCiliumState) | trim | nindent 4 }}
  volumeMounts:
    - name: bpf-maps
      mountPath: /sys/fs/bpf
      mountPropagation: HostToContainer
    - name: cilium-run
      mountPath: /var/run/cilium
{{- if $v.cni.install }}
- name: install-cni-binaries
  {{- include "cilia.agent.initImage" . | nindent 2 }}
  command: [/bin/busybox, sh, -euc]
  args:
    - |
      # A container runtime may be running the old file: rename, never overwrite.
      /bin/busybox cp /usr/bin/cilia-cni /host/opt/cni/bin/.cilium-cni.new
      /bin/busybox mv -f /host/opt/cni/bin/.cilium-cni.new /host/opt/cni/bin/cilium-cni
      # Runtimes set up "lo" with a plugin of that name: ours serves where the host has none.
      if [ ! -e /host/opt/cni/bin/loopback ]; then
        /bin/busybox cp /usr/bin/cilia-cni /host/opt/cni/bin/.loopback.new
        /bin/busybox mv -f /host/opt/cni/bin/.loopback.new /host/opt/cni/bin/loopback
      fi
  {{- with $v.cni.resources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "cilia.agent.securityContext" (dict "root" . "capabilities" list) | trim | nindent 4 }}
  volumeMounts:
    - name: cni-path
      mountPath: /host/opt/cni/bin
{{- end }}
{{- end }}

{{/*
The ConfigMap that the agent's settings are mounted from; nothing if they are put together from several sources.
*/}}
{{- define "cilia.agent.mountedConfig" -}}
{{- $sources := .Values.daemon.configSources | default "" }}
{{- if and (hasPrefix "config-map:" $sources) (not (contains "," $sources)) (not (contains "/" $sources)) }}
{{- trimPrefix "config-map:" $sources }}
{{- end }}
{{- end }}

{{/* The ConfigMaps of the agent's namespace that have settings, as a list in YAML. */}}
{{- define "cilia.agent.configMaps" -}}
{{- $names := list "cilium-config" }}
{{- range splitList "," (.Values.daemon.configSources | default "") }}
{{- if and (hasPrefix "config-map:" .) (not (contains "/" .)) }}
{{- $names = append $names (trimPrefix "config-map:" .) }}
{{- end }}
{{- end }}
{{- uniq $names | toYaml }}
{{- end }}

{{/* Puts the settings together: those of the ConfigMap, and over them what CiliumNodeConfigs say of the node. */}}
{{- define "cilia.agent.configContainer" -}}
{{- $v := .Values -}}
- name: config
  {{- include "cilia.agent.initImage" . | nindent 2 }}
  command:
    - /usr/bin/cilia
    - build-config
    {{- with $v.daemon.configSources }}
    - --source={{ . }}
    {{- end }}
    {{- with $v.daemon.allowedConfigOverrides }}
    - --allow-config-keys={{ . }}
    {{- end }}
    {{- with $v.daemon.blockedConfigOverrides }}
    - --deny-config-keys={{ . }}
    {{- end }}
    {{- with $v.kubeConfigPath }}
    - --k8s-kubeconfig-path={{ . }}
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
    {{- include "cilia.apiServerEnv" . | trim | nindent 4 }}
    {{- with $v.extraEnv }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  {{- with $v.initResources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "cilia.agent.securityContext" (dict "root" . "capabilities" list) | trim | nindent 4 }}
  volumeMounts:
    - name: tmp
      mountPath: /tmp
    {{- with $v.kubeConfigPath }}
    - name: kube-config
      mountPath: {{ . }}
      readOnly: true
    {{- end }}
    {{- with $v.extraVolumeMounts }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}

{{- define "cilia.agent.initImage" -}}
image: {{ include "cilia.image" (dict "image" .Values.image "digest" .Values.image.digest) | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
terminationMessagePolicy: FallbackToLogsOnError
{{- end }}

{{/*
An init container that runs a script with busybox in the host's mount namespace. Arguments: root, name,
capabilities, script (in which $busybox is busybox on the host; its name must begin with busybox).
*/}}
{{- define "cilia.agent.onHost" -}}
{{- $v := .root.Values -}}
- name: {{ .name }}
  {{- include "cilia.agent.initImage" .root | nindent 2 }}
  command: [/bin/busybox, sh, -euc]
  args:
    - |
      trap '/bin/busybox rm -f "/hostbin/$BUSYBOX"' EXIT
      /bin/busybox cp /bin/busybox "/hostbin/$BUSYBOX"
      /bin/busybox nsenter --mount=/hostproc/1/ns/mnt -- "$BIN_PATH/$BUSYBOX" sh -euc "$SCRIPT"
  env:
    - name: BIN_PATH
      value: {{ $v.cni.binPath }}
    - name: BUSYBOX
      value: busybox-{{ .name }}
    - name: SCRIPT
      value: |
        busybox=$BIN_PATH/$BUSYBOX
        {{- .script | nindent 8 }}
  {{- with $v.initResources }}
  resources:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  securityContext:
    {{- include "cilia.agent.securityContext" (dict "root" .root "capabilities" .capabilities) | trim | nindent 4 }}
  volumeMounts:
    - name: hostproc
      mountPath: /hostproc
    - name: cni-path
      mountPath: /hostbin
{{- end }}

{{- define "cilia.agent.mountBpf" -}}
if ! "$busybox" grep -q ' {{ .Values.bpf.root }} bpf ' /proc/mounts; then
  "$busybox" mount -t bpf bpf {{ .Values.bpf.root }}
fi
{{- end }}

{{/* systemd applies this directory to each device that appears: the last file wins. */}}
{{- define "cilia.agent.sysctls" -}}
file=/etc/sysctl.d/99-zzz-override_cilium.conf
[ -d /etc/sysctl.d ] || exit 0
"$busybox" cat > "$file.new" <<EOF
# Written by Cilia's agent: pods' packets come in on devices that their routes do not name.
-net.ipv4.conf.lxc*.rp_filter = 0
-net.ipv4.conf.cilium_*.rp_filter = 0
net.ipv4.conf.all.rp_filter = 0
EOF
"$busybox" mv -f "$file.new" "$file"
{{- end }}
