"""``python -m ithaka.workers.probe``: what torch sees on this machine, and what the models' weights are like.

A process of its own, so that the command line never loads torch. Models come as JSON on stdin, a list of ``{"name",
"family", "options", "ranks"}``; one JSON object goes to stdout: ``{"torch", "cuda", "devices", "weights"}``, with
``{"good", "told"}`` for each model.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from ithaka.workers.families.base import FamilyLoadError
from ithaka.workers.families.registry import check_weights


def main() -> None:
    import torch

    models = json.load(sys.stdin)
    devices = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    found = {"torch": torch.__version__, "cuda": torch.version.cuda, "devices": devices}
    sys.stdout.write(json.dumps({**found, "weights": {model["name"]: _weights(model) for model in models}}))


def _weights(model: dict[str, Any]) -> dict[str, Any]:
    try:
        return {"good": True, "told": check_weights(model["family"], model["options"], model["ranks"])}
    except FamilyLoadError as error:
        return {"good": False, "told": " ".join(str(error).split())}
    except Exception as error:
        return {"good": False, "told": f"they can't be loaded: {type(error).__name__}: {' '.join(str(error).split())}"}


if __name__ == "__main__":
    main()
