"""``python -m ithaka.workers.probe``: what torch sees on this machine, as one JSON object on stdout.

A process of its own, so that the command line never loads torch.
"""

from __future__ import annotations

import json
import sys


def main() -> None:
    import torch

    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    sys.stdout.write(json.dumps({"torch": torch.__version__, "cuda": torch.version.cuda, "devices": devices}))


if __name__ == "__main__":
    main()
