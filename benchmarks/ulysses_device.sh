#!/usr/bin/env bash
# One visit to a machine with GPUs, each stage with its own limit, the most important first.
# usage, from the repository's root: benchmarks/ulysses_device.sh FOLDER STAGE…      FOLDER receives logs and JSON
# stages: build check table loopback sweep calibrate
set -u
cd "$(dirname "$0")/.."
out=${1:?a folder for logs and JSON}
shift
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

bench() { # mode, seconds, lines
  stage "$1" "$2" "$3" python3 -m benchmarks.ulysses "$1" --directory "$out"
}

find_pytest() {
  python3 -c 'import pytest' 2>/dev/null && return
  ls .whl/*.whl >/dev/null 2>&1 || return
  python3 -m pip install -q --no-index --no-deps --no-cache-dir --target /tmp/ulysses-site .whl/*.whl
  export PYTHONPATH=$PYTHONPATH:/tmp/ulysses-site
}

for name in "$@"; do
  case $name in
    build) stage build 60 3 python3 -m ithaka.comm_ext.build --arch 90 ;;
    check) bench check 25 8 ;;
    table) bench table 40 24 ;;
    sweep | calibrate) bench "$name" 35 45 ;;
    loopback)
      find_pytest
      # as many hardware queues as there are streams; in any other stage it would slow the copy engine down
      CUDA_DEVICE_MAX_CONNECTIONS=32 stage loopback 50 40 python3 -m pytest -c /dev/null --rootdir=. -q --maxfail=4 --tb=short --durations=8 \
        -p no:cacheprovider tests/gpu
      ;;
    *) echo "no stage named $name" >&2 && exit 2 ;;
  esac
done
