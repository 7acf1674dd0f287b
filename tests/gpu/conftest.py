"""These tests need CUDA devices; on a machine without one they are not collected at all."""

from __future__ import annotations

import os

# Ranks that share one process and one GPU need a hardware queue for each of their streams; read when CUDA starts.
os.environ.setdefault("CUDA_DEVICE_MAX_CONNECTIONS", "32")
# And a kernel that is loaded at its first launch would wait for another rank's kernel, which waits for that launch.
os.environ.setdefault("CUDA_MODULE_LOADING", "EAGER")

import torch

collect_ignore_glob = [] if torch.cuda.is_available() else ["test_*.py"]
