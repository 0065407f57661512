#!/bin/sh
# The alerts as an object of the Prometheus operator: prometheus-rule.sh [NAMESPACE] | kubectl apply -f -
set -eu
cat <<END
apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata:
  name: gpusonde
  namespace: ${1:-gpusonde}
spec:
END
sed 's/^/  /' "$(dirname "$0")/rules.yml"
