#!/usr/bin/env bash
# Installs the daemon from this checkout into a virtual environment of its own: pinned dependencies, then the built wheel.
# usage: deploy/install.sh DESTINATION
set -euo pipefail
destination=${1:?usage: deploy/install.sh DESTINATION}
root=$(cd "$(dirname "$0")/.." && pwd)
${PYTHON:-python3} -m venv "$destination"
"$destination/bin/python" -m pip install --quiet --disable-pip-version-check uv
"$destination/bin/uv" pip install --quiet --compile-bytecode --python "$destination/bin/python" --require-hashes -r "$root/requirements.lock"
wheels=$(mktemp -d)
trap 'rm -rf "$wheels"' EXIT
"$destination/bin/uv" build --quiet --wheel --python "$destination/bin/python" --out-dir "$wheels" "$root"
"$destination/bin/uv" pip install --quiet --compile-bytecode --python "$destination/bin/python" --no-deps "$wheels"/ithaka-*.whl
