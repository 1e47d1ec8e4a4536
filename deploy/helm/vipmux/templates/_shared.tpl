{{- /* The first part of the objects' names. */}}
{{- define "vipmux.name" -}}
{{ .Values.nameOverride | default "vipmux" }}
{{- end }}

{{- define "vipmux.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- with .Values.image.digest }}@{{ . }}{{ end }}
{{- end }}

{{- /* Of a container that loads BPF programs, or takes them out. */}}
{{- define "vipmux.security" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
runAsUser: 0
capabilities:
  drop: [ALL]
  add: [BPF, NET_ADMIN, NET_RAW, PERFMON]
# Some container runtimes' seccomp profiles refuse bpf(2) even with CAP_BPF (CRI-O, older
# containerd). AppArmor's profile and SELinux's container type refuse pins in a bpffs. Without
# SELinux its options are ignored.
seccompProfile:
  type: Unconfined
appArmorProfile:
  type: Unconfined
seLinuxOptions:
  level: s0
  type: spc_t
{{- end }}

{{- /* The port of --http-listen, ADDR:PORT; nothing where it is off. */}}
{{- define "vipmux.http" -}}
{{- $listen := .Values.config.httpListen | default "[::]:7945" }}
{{- if ne $listen "off" }}{{ splitList ":" $listen | last }}{{ end }}
{{- end }}

{{- /* The address of --http-listen; nothing where that is all of them. */}}
{{- define "vipmux.host" -}}
{{- $host := regexReplaceAll ":[0-9]+$" (.Values.config.httpListen | default "") "" | trimAll "[]" }}
{{- if not (has $host (list "off" "::" "0.0.0.0")) }}{{ $host }}{{ end }}
{{- end }}

{{- /* Of the Pod itself, or of the address that is given. */}}
{{- define "vipmux.probes" -}}
startupProbe:
  httpGet:
    path: /healthz
    port: http
    {{- with . }}
    host: {{ quote . }}
    {{- end }}
  initialDelaySeconds: 1
  periodSeconds: 10
  timeoutSeconds: 30
  failureThreshold: 6
livenessProbe:
  httpGet:
    path: /healthz
    port: http
    {{- with . }}
    host: {{ quote . }}
    {{- end }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
readinessProbe:
  httpGet:
    path: /readyz
    port: http
    {{- with . }}
    host: {{ quote . }}
    {{- end }}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 2
{{- end }}

{{- /* What Pods may say about where they run, and what is said about them. */}}
{{- define "vipmux.placement" -}}
priorityClassName: {{ .priorityClassName }}
{{- with .runtimeClassName }}
runtimeClassName: {{ . }}
{{- end }}
nodeSelector:
  kubernetes.io/os: linux
  {{- with .nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
