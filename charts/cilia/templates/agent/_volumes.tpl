{{- define "cilia.agent.volumes" -}}
{{- $v := .Values -}}
- name: tmp
  {{- toYaml ($v.tmpVolume | default (dict "emptyDir" dict)) | nindent 2 }}
- name: cilium-config-path
  configMap:
    name: cilium-config
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
