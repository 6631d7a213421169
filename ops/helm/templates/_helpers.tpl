{{- define "xylem.name" -}}
{{- if contains "xylem" .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-xylem{{ end }}
{{- end }}

{{/* Of one component: (list $ "api"). */}}
{{- define "xylem.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/name: xylem
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "xylem.labels" -}}
{{- $root := index . 0 -}}
{{ include "xylem.selector" . }}
app.kubernetes.io/version: {{ $root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ $root.Release.Service }}
helm.sh/chart: {{ $root.Chart.Name }}-{{ $root.Chart.Version }}
{{- end }}

{{/* (list $ image) */}}
{{- define "xylem.image" -}}
{{- $image := index . 1 -}}
image: {{ printf "%s:%s" $image.repository (default (index . 0).Chart.AppVersion $image.tag) | quote }}
imagePullPolicy: {{ $image.pullPolicy }}
{{- end }}

{{/* Seconds, of the settings: */}}
{{- define "xylem.drain" -}}
{{ .Values.settings.XYLEM_DRAIN_TIMEOUT_S | default 600 | float64 | ceil | int64 }}
{{- end }}
{{- define "xylem.stall" -}}
{{ .Values.settings.XYLEM_STALL_S | default 60 | float64 | ceil | int64 }}
{{- end }}

{{/* The pools file's values of one pool's workers: (list $ "decode-pool-a"). */}}
{{- define "xylem.worker" -}}
{{- $root := index . 0 -}}
{{ mergeOverwrite (deepCopy $root.Values.workerDefaults) (deepCopy (default dict (index $root.Values.workers (index . 1)))) | toJson }}
{{- end }}

{{- define "xylem.redisSecret" -}}
{{ .Values.redis.secret | default (printf "%s-redis" (include "xylem.name" .)) }}
{{- end }}

{{/* Environment of a process: (list $ "api" values). */}}
{{- define "xylem.env" -}}
{{- $root := index . 0 }}{{ $kind := index . 1 }}{{ $values := index . 2 -}}
envFrom:
  - configMapRef: { name: {{ include "xylem.name" $root }}-settings }
  {{- with $values.envSecret }}
  - secretRef: { name: {{ . }} }
  {{- end }}
env:
  - name: XYLEM_REDIS_URL
    valueFrom: { secretKeyRef: { name: {{ include "xylem.redisSecret" $root }}, key: {{ $kind }} } }
  {{- with $values.env }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Environment of all workers: where their own port is. */}}
{{- define "xylem.workerAddress" -}}
- name: XYLEM_ADDRESS
  valueFrom: { fieldRef: { fieldPath: status.podIP } }
- { name: XYLEM_WORKER_PORT, value: "9100" }
{{- end }}

{{/* Of a process that reads or writes usage. */}}
{{- define "xylem.usageUrl" -}}
- name: XYLEM_USAGE_URL
  valueFrom: { secretKeyRef: { name: {{ .urlSecret }}, key: XYLEM_USAGE_URL } }
{{- end }}

{{/* Of a pod: (list $ values). enableServiceLinks: a Service named xylem would otherwise set XYLEM_PORT. */}}
{{- define "xylem.pod" -}}
{{- $root := index . 0 }}{{ $values := index . 1 -}}
automountServiceAccountToken: false
enableServiceLinks: false
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: { type: RuntimeDefault }
{{- with $root.Values.imagePullSecrets }}
imagePullSecrets: {{- toYaml . | nindent 2 }}
{{- end }}
{{- include "xylem.placement" $values }}
{{- end }}

{{- define "xylem.placement" -}}
{{- range $key := list "nodeSelector" "tolerations" "affinity" }}
{{- with index $ $key }}
{{ $key }}: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}

{{- define "xylem.container" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: { drop: [ALL] }
{{- end }}

{{/* Volumes and their mounts: (list $ values "models" "data"). Engines write caches into the home folder. */}}
{{- define "xylem.volumes" -}}
{{- $root := index . 0 }}{{ $values := index . 1 -}}
- { name: home, emptyDir: {} }
- { name: tmp, emptyDir: {} }
- { name: pools, configMap: { name: {{ include "xylem.name" $root }}-pools } }
{{- range $name := slice . 2 }}
{{- $volume := index $root.Values $name }}
{{- if $volume.existingClaim }}
- { name: {{ $name }}, persistentVolumeClaim: { claimName: {{ $volume.existingClaim }} } }
{{- else if $volume.size }}
- { name: {{ $name }}, persistentVolumeClaim: { claimName: {{ include "xylem.name" $root }}-{{ $name }} } }
{{- end }}
{{- end }}
{{- with $values.volumes }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "xylem.mounts" -}}
{{- $root := index . 0 }}{{ $values := index . 1 -}}
- { name: home, mountPath: /home/xylem }
- { name: tmp, mountPath: /tmp }
- { name: pools, mountPath: /etc/xylem, readOnly: true }
{{- range $name := slice . 2 }}
{{- $volume := index $root.Values $name }}
{{- if or $volume.existingClaim $volume.size }}
- { name: {{ $name }}, mountPath: /{{ $name }}, readOnly: {{ $volume.readOnly | default false }} }
{{- end }}
{{- end }}
{{- with $values.volumeMounts }}
{{ toYaml . }}
{{- end }}
{{- end }}
