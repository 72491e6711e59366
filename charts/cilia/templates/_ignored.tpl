{{/*
Lists, a line each, the values that the user has set, that Cilium's chart knows, and that have no effect here. The file
has a line for each such value: its path, a tab, its default in Cilium's chart as JSON.
*/}}
{{- define "cilia.ignored" -}}
{{- range .Files.Lines "files/unbuilt-values.tsv" }}
{{- $line := splitList "\t" . }}
{{- if eq (len $line) 2 }}
{{- $value := include "cilia.value" (dict "values" $.Values "path" (index $line 0)) }}
{{- $default := printf "{\"value\":%s}" (index $line 1) | fromJson }}
{{- if and $value (ne $value (toJson $default.value)) }}
{{ index $line 0 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
