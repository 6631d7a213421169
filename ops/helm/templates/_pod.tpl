{{- /* A pod of a pool's workers: (list $root "decode-pool-a" $worker $alike). */}}
{{- define "xylem.workerPod" -}}
{{- $root := index . 0 }}{{ $pool := index . 1 }}{{ $worker := index . 2 }}{{ $alike := index . 3 -}}
metadata:
  labels:
    {{- include "xylem.selector" (list $root "worker") | nindent 4 }}
    xylem/pool: {{ $pool }}
  annotations:
    checksum/settings: {{ toJson $root.Values.settings | sha256sum }}
    checksum/pools: {{ toJson $alike | sha256sum }}
spec:
  {{- include "xylem.pod" (list $root $worker) | nindent 2 }}
  # Requests may end for XYLEM_DRAIN_TIMEOUT_S, and then others may take the KV computed here for as long.
  terminationGracePeriodSeconds: {{ add (mul 2 (include "xylem.drain" $root)) 60 }}
  containers:
    - name: worker
      {{- include "xylem.image" (list $root $worker.image) | nindent 6 }}
      {{- include "xylem.container" $root | nindent 6 }}
      command: [xylem, worker, {{ $pool }}]
      {{- include "xylem.env" (list $root "worker" $worker) | nindent 6 }}
        {{- include "xylem.workerAddress" $root | nindent 8 }}
      ports:
        - { name: worker, containerPort: 9100 }
      startupProbe: # the port opens before the engine is loaded
        httpGet: &live { path: /live, port: worker }
        periodSeconds: 5
        failureThreshold: 60
      livenessProbe: # a worker that hangs ends itself after XYLEM_STALL_S: this is for one that can't
        httpGet: *live
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: {{ add (div (add (include "xylem.stall" $root) 9) 10) 2 }}
      readinessProbe: # no requests come this way: for updates and disruption budgets
        httpGet: { path: /ready, port: worker }
        periodSeconds: 5
        timeoutSeconds: 5
      resources:
        {{- $resources := deepCopy $worker.resources }}
        {{- if $worker.gpus }}
        {{- $resources = mergeOverwrite $resources (dict "limits" (dict $worker.gpuResource $worker.gpus)) }}
        {{- end }}
        {{- toYaml $resources | nindent 8 }}
      volumeMounts:
        - { name: shm, mountPath: /dev/shm }
        {{- include "xylem.mounts" (list $root $worker "models" "kv") | nindent 8 }}
  volumes:
    - { name: shm, emptyDir: { medium: Memory, sizeLimit: {{ $worker.shm }} } }
    {{- include "xylem.volumes" (list $root $worker "models" "kv") | nindent 4 }}
{{- end }}
