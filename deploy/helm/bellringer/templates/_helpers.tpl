{{- define "bellringer.name" -}}
{{- if contains .Chart.Name .Release.Name }}{{ .Release.Name }}{{ else }}{{ .Release.Name }}-{{ .Chart.Name }}{{ end -}}
{{- end }}

{{- define "bellringer.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (include "bellringer.name" .) -}}
{{- end }}

{{- define "bellringer.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* Labels that select pods: they never change. Call with (dict "root" $ "component" "server"). */}}
{{- define "bellringer.selector" -}}
app.kubernetes.io/name: bellringer
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{- define "bellringer.labels" -}}
{{ include "bellringer.selector" . }}
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ .root.Chart.Name }}-{{ .root.Chart.Version }}
{{- end }}

{{- define "bellringer.podSecurity" -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  seccompProfile: {type: RuntimeDefault}
automountServiceAccountToken: false
enableServiceLinks: false
{{- end }}

{{- define "bellringer.containerSecurity" -}}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities: {drop: [ALL]}
{{- end }}

{{/*
The addresses of the database, from the component's own secret or that of `database`. Call with
(dict "root" $ "database" .Values.server.database). The direct one leads around PgBouncer.
*/}}
{{- define "bellringer.databaseEnv" -}}
{{- $own := .database | default dict }}
{{- $name := $own.secretName | default .root.Values.database.secretName }}
{{- $direct := $own.directSecretKey | default .root.Values.database.directSecretKey -}}
- name: BELLRINGER_DSN
  valueFrom:
    secretKeyRef: {name: {{ $name }}, key: {{ $own.secretKey | default .root.Values.database.secretKey }}}
{{- if $direct }}
- name: BELLRINGER_DIRECT_DSN
  valueFrom:
    secretKeyRef: {name: {{ $name }}, key: {{ $direct }}}
{{- end }}
{{- end }}

{{/*
The environment of a long-running process. The name of a process in lists is that of its pod. Call with
(dict "root" $ "component" .Values.server).
*/}}
{{- define "bellringer.env" -}}
{{- $component := .component }}
{{- with .root -}}
{{ include "bellringer.databaseEnv" (dict "root" . "database" $component.database) }}
- name: BELLRINGER_NAME
  valueFrom:
    fieldRef: {fieldPath: metadata.name}
- name: BELLRINGER_HOST
  value: "0.0.0.0"
- name: BELLRINGER_METRICS_PORT
  value: {{ .Values.metrics.port | quote }}
{{- range $name, $value := .Values.settings }}
- name: BELLRINGER_{{ upper $name }}
  value: {{ $value | quote }}
{{- end }}
{{- range .Values.secretSettings }}
- name: {{ .name }}
  valueFrom:
    secretKeyRef: {name: {{ .secretName }}, key: {{ .secretKey }}}
{{- end }}
{{- end }}
{{- with .component.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "bellringer.envFrom" -}}
{{- with .envFrom }}
envFrom:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Call with a component, such as .Values.server. */}}
{{- define "bellringer.volumeMounts" -}}
volumeMounts:
  - {name: tmp, mountPath: /tmp}
  {{- with .extraVolumeMounts }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Call with (dict "component" .Values.server "tmp" "{sizeLimit: 64Mi}"). */}}
{{- define "bellringer.volumes" -}}
volumes:
  - name: tmp
    emptyDir: {{ .tmp }}
  {{- with .component.extraVolumes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- end }}

{{/* Two servers on one node are lost together, so pods prefer different nodes. */}}
{{- define "bellringer.spread" -}}
topologySpreadConstraints:
  - maxSkew: 1
    topologyKey: kubernetes.io/hostname
    whenUnsatisfiable: ScheduleAnyway
    labelSelector:
      matchLabels:
        {{- include "bellringer.selector" . | nindent 8 }}
{{- end }}

{{- define "bellringer.placement" -}}
{{- with .nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .affinity }}
affinity:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Probes on the metrics port: /healthz fails if background loops do not progress, /readyz without the database. */}}
{{- define "bellringer.probes" -}}
startupProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 2
  failureThreshold: 150
livenessProbe:
  httpGet: {path: /healthz, port: metrics}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
{{- end }}
