#!/usr/bin/env bash
# One visit to a machine with GPUs: build, check, time, calibrate. Each stage has its own limit, the most important come first.
# usage, from the repository's root: benchmarks/ulysses_device.sh [FOLDER]      FOLDER receives logs and JSON
set -u
cd "$(dirname "$0")/.."
out=${1:-/tmp/ulysses-out}
mkdir -p "$out"
export PYTHONPATH=src:.${PYTHONPATH:+:$PYTHONPATH} PYTHONUNBUFFERED=1
export TORCH_SYMM_MEM_DISABLE_MULTICAST=1 NCCL_NVLS_ENABLE=0 NVSHMEM_DISABLE_NVLS=1

stage() { # name, seconds, lines of its log to show, command…
  local name=$1 limit=$2 lines=$3 began=$SECONDS
  shift 3
  timeout -k 3 "$limit" "$@" >"$out/$name.log" 2>&1
  local status=$?
  echo "== $name: exit $status after $((SECONDS - began)) s"
  tail -n "$lines" "$out/$name.log"
}

stage build 60 3 python3 -m ithaka.comm_ext.build --arch 90
stage check 45 12 python3 -m benchmarks.ulysses check
stage table 60 24 python3 -m benchmarks.ulysses table --directory "$out"
if ! python3 -c 'import pytest' 2>/dev/null && ls .whl/*.whl >/dev/null 2>&1; then
  python3 -m pip install -q --no-index --no-deps --no-cache-dir --target /tmp/ulysses-site .whl/*.whl
  export PYTHONPATH=$PYTHONPATH:/tmp/ulysses-site
fi
stage loopback 75 25 python3 -m pytest -c /dev/null --rootdir=. -q -x --tb=short -p no:cacheprovider tests/gpu
stage sweep 55 15 python3 -m benchmarks.ulysses sweep --directory "$out"
