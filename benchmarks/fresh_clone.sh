#!/usr/bin/env bash
# The newcomer's path: clone into an empty directory, with an empty HOME, then `make demo` twice and `make test`.
# Usage: benchmarks/fresh_clone.sh [PYTHON]
set -euo pipefail
repository=$(cd "$(dirname "$0")/.." && pwd)
python=${1:-python3}
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT
mkdir "$place/home"
git clone --quiet --no-hardlinks "$repository" "$place/gpusonde"
cd "$place/gpusonde"
export HOME="$place/home"
unset PYTHONPATH VIRTUAL_ENV XDG_CONFIG_HOME XDG_CACHE_HOME XDG_DATA_HOME

timed() {
    local start=$SECONDS
    "$@"
    printf '%s: %d s\n' "$*" "$((SECONDS - start))"
}
timed make PYTHON="$python" demo
timed make PYTHON="$python" demo
timed make PYTHON="$python" test
git status --short
test -z "$(git status --porcelain)" || { echo "the working tree is not clean after demo and test" >&2; exit 1; }
