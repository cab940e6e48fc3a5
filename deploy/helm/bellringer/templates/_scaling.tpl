{{- define "bellringer.hpa" }}
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ include "bellringer.name" .root }}-{{ .component }}
  labels:
    {{- include "bellringer.labels" . | nindent 4 }}
spec:
  scaleTargetRef:
    apiVersion: apps/v1
    kind: Deployment
    name: {{ include "bellringer.name" .root }}-{{ .component }}
  minReplicas: {{ .autoscaling.minReplicas }}
  maxReplicas: {{ .autoscaling.maxReplicas }}
  metrics:
    - type: Resource
      resource:
        name: cpu
        target: {type: Utilization, averageUtilization: {{ .autoscaling.targetCPUUtilizationPercentage }}}
{{- end }}

{{- define "bellringer.pdb" }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ include "bellringer.name" .root }}-{{ .component }}
  labels:
    {{- include "bellringer.labels" . | nindent 4 }}
spec:
  maxUnavailable: {{ .budget.maxUnavailable }}
  selector:
    matchLabels:
      {{- include "bellringer.selector" . | nindent 6 }}
{{- end }}

{{/*
Scales a worker by its pools. All servers report the same figures of the database, so `max` selects one of them.
A pool needs as many pods as runs / (slots of a pod × busyPercent). docs/pools.md has the reasons.
*/}}
{{- define "bellringer.scaledObject" }}
{{- $keda := .worker.keda }}
{{- $procs := int .worker.procs }}
apiVersion: keda.sh/v1alpha1
kind: ScaledObject
metadata:
  name: {{ include "bellringer.name" .root }}-{{ .component }}
  labels:
    {{- include "bellringer.labels" . | nindent 4 }}
spec:
  scaleTargetRef:
    name: {{ include "bellringer.name" .root }}-{{ .component }}
  pollingInterval: {{ $keda.pollingInterval }}
  cooldownPeriod: {{ $keda.cooldownPeriod }}
  minReplicaCount: {{ $keda.minReplicas }}
  maxReplicaCount: {{ $keda.maxReplicas }}
  advanced:
    horizontalPodAutoscalerConfig:
      behavior:
        scaleDown:
          stabilizationWindowSeconds: {{ $keda.stabilizationWindowSeconds }}
  triggers:
    {{- if not .worker.pools }}
    {{- fail (printf "workers.%s: keda needs pools, such as {short: 200}" .name) }}
    {{- end }}
    {{- range $pool, $slots := .worker.pools }}
    - type: prometheus
      metricType: AverageValue
      metadata:
        serverAddress: {{ $.root.Values.metrics.prometheusAddress }}
        {{- if $keda.countWaiting }}
        query: sum(max by (state) (bellringer_pool_runs{pool="{{ $pool }}"}))
        {{- else }}
        query: max(bellringer_pool_runs{pool="{{ $pool }}",state="busy"})
        {{- end }}
        threshold: {{ max 1 (div (mul (int $slots) $procs (int $keda.busyPercent)) 100) | quote }}
        activationThreshold: "0"
    {{- if gt (int $keda.maxWaitSeconds) 0 }}
    - type: prometheus
      metricType: Value
      metadata:
        serverAddress: {{ $.root.Values.metrics.prometheusAddress }}
        query: max(bellringer_pool_oldest_ready_seconds{pool="{{ $pool }}"})
        threshold: {{ $keda.maxWaitSeconds | quote }}
        activationThreshold: "0"
    {{- end }}
    {{- end }}
{{- end }}
