#!/bin/sh
# Regenerate the committed stubs. Usage: proto/generate.sh [PYTHON [OUTPUT_DIRECTORY]]
set -eu
cd "$(dirname "$0")"
python=${1:-python3}
out=${2:-.}
# The generator's version is the runtime minimum of every host: see pyproject.toml.
exec "$python" -m grpc_tools.protoc -I. \
    --python_out="$out" --pyi_out="$out" --grpc_python_out="$out" \
    gpusonde/admin/v1/*.proto gpusonde/common/v1/*.proto gpusonde/formats/v1/*.proto gpusonde/ingest/v1/*.proto gpusonde/kubelet/v1/*.proto gpusonde/planning/v1/*.proto gpusonde/query/v1/*.proto gpusonde/workload/v1/*.proto
