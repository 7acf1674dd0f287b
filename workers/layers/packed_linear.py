"""Linear layers whose weights were laid out once for the CPU's matrix kernels.

An ordinary product copies its weights into the kernel's layout in every call. For the few tokens of one frame that costs as
much as the arithmetic, and it costs every rank the same, however small its share of the tokens.
"""

from __future__ import annotations

import torch
from torch import nn


def can_pack(device: torch.device) -> bool:
    """Whether this build of torch packs weights for ``device``."""
    return device.type == "cpu" and torch._C._has_mkldnn and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class PackedLinear(nn.Module):
    """``linear``, optionally followed by GELU in its tanh form, for inference on a CPU that ``can_pack``.

    The sums are those of ``linear`` in another order; GELU is computed before the result is rounded to its dtype.
    """

    def __init__(self, linear: nn.Linear, *, gelu: bool = False) -> None:
        super().__init__()
        self.weight: torch.Tensor = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach())
        """Opaque but for its dtype."""
        self._bias = None if linear.bias is None else linear.bias.detach()
        self._then = ("gelu", "tanh") if gelu else ("none", "")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] → [..., out], in the dtype of the weights, which is that of ``x``."""
        name, form = self._then
        made: torch.Tensor = torch.ops.mkldnn._linear_pointwise(x, self.weight, self._bias, name, [], form)
        return made
