"""Import diffusers' Wan transformer without loading the compiler.

The package marks a few functions for torch's graph compiler and imports its flexible attention at once. Together these
imports take longer than loading this model, and nothing here compiles, so they are stood in for while importing. A process
that has loaded the compiler already gets the real ones, and so does one with packages that diffusers would import further.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch


@contextmanager
def _compiler_stood_in_for() -> Iterator[None]:
    others = any(find_spec(name) is not None for name in ("peft", "transformers"))
    if others or "torch._dynamo" in sys.modules:
        yield
        return
    compiler = ModuleType("torch._dynamo")
    vars(compiler).update(allow_in_graph=lambda target: target, disable=_disable)
    flexible = ModuleType("torch.nn.attention.flex_attention")
    vars(flexible)["__getattr__"] = _absent
    stand_ins = {module.__name__: module for module in (compiler, flexible)}
    sys.modules.update(stand_ins)
    try:
        yield
    finally:
        for name, module in stand_ins.items():
            if sys.modules.get(name) is module:
                del sys.modules[name]
        for owner, attribute in ((torch, "_dynamo"), (torch.nn.attention, "flex_attention")):
            if vars(owner).get(attribute) in stand_ins.values():
                delattr(owner, attribute)


def _absent(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return type(name, (), {})


def _disable(target: Callable[..., Any] | None = None, recursive: bool = True, *, reason: str | None = None) -> Any:
    return target if target is not None else lambda later: later


def _import() -> tuple[Any, Any, Any]:
    with _compiler_stood_in_for():
        from diffusers.configuration_utils import register_to_config
        from diffusers.models.transformers.transformer_wan import WanTransformer3DModel, WanTransformerBlock
    return WanTransformer3DModel, WanTransformerBlock, register_to_config


WanTransformer3DModel, WanTransformerBlock, register_to_config = _import()
