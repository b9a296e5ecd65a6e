{{- define "rrq.fullname" -}}
{{- /* The name of a release may contain dots or start with a digit; the name of a Service may not. */ -}}
{{- $name := .Release.Name | replace "." "-" -}}
{{- if regexMatch "^[0-9]" $name }}{{ $name = printf "%s-%s" .Chart.Name $name }}{{ end -}}
{{- if not (contains .Chart.Name $name) }}{{ $name = printf "%s-%s" $name .Chart.Name }}{{ end -}}
{{- /* 45 leaves room for the longest suffix. */ -}}
{{- .Values.fullnameOverride | default $name | trunc 45 | trimSuffix "-" -}}
{{- end -}}

{{- define "rrq.operator" -}}
{{ include "rrq.fullname" . }}-operator
{{- end -}}

{{- define "rrq.redis" -}}
{{ include "rrq.fullname" . }}-redis
{{- end -}}

{{- define "rrq.serviceAccount" -}}
{{- .Values.serviceAccount.name | default (ternary (include "rrq.operator" .) "default" .Values.serviceAccount.create) -}}
{{- end -}}

{{- /* Pools and their Redis must share a namespace, because a pool can name only Secrets of its own. */ -}}
{{- define "rrq.poolNamespace" -}}
{{ .Values.watchNamespace | default .Release.Namespace }}
{{- end -}}

{{- define "rrq.image" -}}
{{- with .Values.image -}}
{{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag | default $.Chart.AppVersion }}{{ end }}
{{- end -}}
{{- end -}}

{{- /* The selector labels of pods, which must never change. Called with (list . "operator"). */ -}}
{{- define "rrq.selector" -}}
{{- $component := index . 1 }}{{ with index . 0 -}}
app.kubernetes.io/name: rrq-{{ $component }}
app.kubernetes.io/instance: {{ quote .Release.Name }}
{{- end -}}
{{- end -}}

{{- /* Called with (list . "operator"). */ -}}
{{- define "rrq.labels" -}}
{{- $selector := include "rrq.selector" . | fromYaml -}}
{{- with index . 0 -}}
{{- $chart := printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" -}}
{{- $ours := dict "helm.sh/chart" $chart "app.kubernetes.io/part-of" "rrq" "app.kubernetes.io/version" .Chart.AppVersion "app.kubernetes.io/managed-by" .Release.Service -}}
{{- merge $selector $ours .Values.commonLabels | toYaml -}}
{{- end -}}
{{- end -}}

{{- /* Labels and annotations below `metadata:`. Called with (list . "operator"); a third entry adds annotations,
       a fourth adds labels. */ -}}
{{- define "rrq.about" -}}
{{- $annotations := dict }}{{ if gt (len .) 2 }}{{ $annotations = index . 2 }}{{ end }}
{{- $labels := dict }}{{ if gt (len .) 3 }}{{ $labels = index . 3 }}{{ end -}}
labels:
  {{- merge (dict) $labels (include "rrq.labels" . | fromYaml) | toYaml | nindent 2 }}
{{- with merge (dict) $annotations (index . 0).Values.commonAnnotations }}
annotations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The restricted profile of Kubernetes. The user is that of the image, so that OpenShift may choose another. */ -}}
{{- define "rrq.podSecurity" -}}
runAsNonRoot: true
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{- define "rrq.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end -}}

{{- /* A pod that runs one program and exits. Called with (list . account); the container: (list . file). */ -}}
{{- define "rrq.ownPod" -}}
{{- $account := index . 1 }}{{ with index . 0 -}}
serviceAccountName: {{ $account }}
automountServiceAccountToken: true
enableServiceLinks: false
{{- with .Values.imagePullSecrets }}
imagePullSecrets:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  {{- include "rrq.podSecurity" . | nindent 2 }}
{{- with .Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .Values.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}
{{- end -}}

{{- define "rrq.ownContainer" -}}
{{- $file := index . 1 }}{{ with index . 0 -}}
image: {{ include "rrq.image" . | quote }}
imagePullPolicy: {{ .Values.image.pullPolicy }}
command: [python3, -c]
args:
  - |
    {{- .Files.Get $file | nindent 4 }}
resources:
  requests: {cpu: 10m, memory: 32Mi}
  limits: {memory: 64Mi}
securityContext:
  {{- include "rrq.containerSecurity" . | nindent 2 }}
{{- end -}}
{{- end -}}
