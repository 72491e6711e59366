{{- define "cilia.agent.volumes" -}}
{{- $v := .Values -}}
- name: tmp
  {{- toYaml ($v.tmpVolume | default (dict "emptyDir" dict)) | nindent 2 }}
{{- with include "cilia.agent.mountedConfig" . | trim }}
- name: cilium-config-path
  configMap:
    name: {{ . }}
{{- end }}
{{ include "cilia.clusterVolume" . }}
{{ include "cilia.etcdVolumes" . | trim }}
{{ include "cilia.hostPath" (list "cilium-run" $v.daemon.runPath "DirectoryOrCreate") }}
{{ include "cilia.hostPath" (list "cilium-netns" "/var/run/netns" "DirectoryOrCreate") }}
{{ include "cilia.hostPath" (list "bpf-maps" $v.bpf.root "DirectoryOrCreate") }}
{{- if or $v.sysctlfix.enabled $v.bpf.autoMount.enabled }}
{{ include "cilia.hostPath" (list "hostproc" "/proc" "Directory") }}
{{- end }}
{{ include "cilia.hostPath" (list "host-proc-sys-net" "/proc/sys/net" "Directory") }}
{{ include "cilia.hostPath" (list "host-proc-sys-kernel" "/proc/sys/kernel" "Directory") }}
{{ include "cilia.hostPath" (list "cni-path" $v.cni.binPath "DirectoryOrCreate") }}
{{- if $v.cni.install }}
{{ include "cilia.hostPath" (list "etc-cni-netd" $v.cni.confPath "DirectoryOrCreate") }}
{{- end }}
{{- with $v.kubeConfigPath }}
{{ include "cilia.hostPath" (list "kube-config" . "FileOrCreate") }}
{{- end }}
{{- range $v.extraHostPathMounts }}
{{ include "cilia.hostPath" (list .name .hostPath (.hostPathType | default "")) }}
{{- end }}
{{- with $v.extraVolumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{/* Arguments: name, path, type. */}}
{{- define "cilia.hostPath" -}}
- name: {{ index . 0 }}
  hostPath:
    path: {{ index . 1 }}
    {{- with index . 2 }}
    type: {{ . }}
    {{- end }}
{{- end }}

{{- define "cilia.etcdVolumes" -}}
{{- if .Values.etcd.enabled }}
- name: etcd-config-path
  configMap:
    name: cilium-config
    # 0400, which not every reader of YAML takes for octal.
    defaultMode: 256
    items:
      - key: etcd-config
        path: etcd.config
{{- if .Values.etcd.ssl }}
- name: etcd-secrets
  secret:
    # 0400, which not every reader of YAML takes for octal.
    defaultMode: 256
    optional: true
    secretName: cilium-etcd-secrets
{{- end }}
{{- end }}
{{- end }}

{{- define "cilia.etcdMounts" -}}
{{- if .Values.etcd.enabled }}
- name: etcd-config-path
  mountPath: /var/lib/etcd-config
  readOnly: true
{{- if .Values.etcd.ssl }}
- name: etcd-secrets
  mountPath: /var/lib/etcd-secrets
  readOnly: true
{{- end }}
{{- end }}
{{- end }}
