{{- /* A file beside the templates, with the release's namespace and the operator's names of secrets in it. */ -}}
{{- define "gpusonde.text" -}}
{{- $root := .root -}}
{{- $secrets := $root.Values.secrets -}}
{{- $root.Files.Get .path
    | replace ".gpusonde.svc" (printf ".%s.svc" $root.Release.Namespace)
    | replace "gpusonde-collector-tls" $secrets.tls
    | replace "gpusonde-collector-tokens" $secrets.tokens
    | replace "gpusonde-agent-token" $secrets.agentToken -}}
{{- end -}}

{{- /* Sets in a DaemonSet or StatefulSet what values.yaml says of its daemon; prints nothing. */ -}}
{{- define "gpusonde.workload" -}}
{{- $root := .root -}}
{{- $daemon := trimPrefix "gpusonde-" .object.metadata.name -}}
{{- $values := get $root.Values $daemon -}}
{{- $template := .object.spec.template -}}
{{- $container := first $template.spec.containers -}}
{{- $image := $root.Values.image -}}
{{- $_ := set $container "image" (printf "%s%s:%s" $image.registry $container.image ($image.tag | default $root.Chart.AppVersion)) -}}
{{- $_ := set $container "imagePullPolicy" $image.pullPolicy -}}
{{- $env := $container.env | default list -}}
{{- range $section, $options := $values.config -}}
{{- range $option, $value := $options -}}
{{- $name := printf "GPUSONDE_%s_%s_%s" $daemon $section $option | upper -}}
{{- $kept := list -}}
{{- range $env }}{{ if ne .name $name }}{{ $kept = append $kept . }}{{ end }}{{ end -}}
{{- $env = append $kept (dict "name" $name "value" (toString $value)) -}}
{{- end -}}
{{- end -}}
{{- if $env }}{{ $_ := set $container "env" $env }}{{ end -}}
{{- $_ := mergeOverwrite $container (deepCopy $values.container) -}}
{{- $_ := mergeOverwrite $template.spec (deepCopy $values.pod) -}}
{{- /* Another configuration is another pod. */ -}}
{{- $config := include "gpusonde.text" (dict "path" (printf "base/%s.toml" $daemon) "root" $root) -}}
{{- $_ := set $template.metadata.annotations "gpusonde/config" (sha256sum $config) -}}
{{- with $values.storage -}}
{{- $claim := (first $.object.spec.volumeClaimTemplates).spec -}}
{{- $_ := set $claim.resources.requests "storage" .size -}}
{{- if .className }}{{ $_ := set $claim "storageClassName" .className }}{{ end -}}
{{- end -}}
{{- end -}}
