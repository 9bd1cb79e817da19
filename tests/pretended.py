"""A GPU that is not there: tensors that claim to be on one, and compute on the processor.

It shows on any machine whether code for a GPU works at all: no operation may mix tensors of both
places, and none may read values that were not copied back. CUDA forbids the same. Speed, rounding,
memory and gradients are not those of a GPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils import _pytree as tree
from torch.utils._python_dispatch import TorchDispatchMode

__all__ = ["gpu"]

DEVICE = torch.device("cuda", 0)
ATEN: Any = torch.ops.aten
COPIES = {ATEN._to_copy.default, ATEN.copy_.default}
INDEXED = {
    ATEN.index.Tensor,
    ATEN.index_put_.default,
    ATEN.index_put.default,
    ATEN._index_put_impl_.default,
}
"""Operations whose indices may be on the processor while the tensor is not."""


class Pretended(torch.Tensor):
    """A tensor of the device; ``held`` has its values."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> Any:
        made: Any = torch.Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=DEVICE,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Device(TorchDispatchMode):
    """Makes what is asked for on the device a tensor of it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _computed(func, args, kwargs or {})


class _Generator(torch.Generator):
    """A generator of the processor, of any device."""

    def __new__(cls, device: Any = "cpu") -> Any:
        made: Any = super().__new__(cls, "cpu")
        made.claimed = torch.device(device)
        return made

    def __init__(self, device: Any = "cpu") -> None: ...

    @property
    def device(self) -> torch.device:
        return self.claimed  # type: ignore[attr-defined, no-any-return]


class _NoGradients:
    """In place of inference mode, in which no such tensor can be made."""

    def __enter__(self) -> None:
        self.before = torch.is_grad_enabled()
        torch._C._set_grad_enabled(False)

    def __exit__(self, *_: object) -> None:
        torch._C._set_grad_enabled(self.before)


def _computed(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    """What an operation gives, computed on the processor."""
    given = [x for x in tree.tree_leaves((args, kwargs)) if isinstance(x, torch.Tensor)]
    held = {id(x.held): x for x in given if isinstance(x, Pretended)}
    _check_places(func, args, given)
    if func is ATEN.copy_.default:
        there = isinstance(args[0], Pretended)
    elif (wanted := kwargs.get("device")) is not None:
        there = torch.device(wanted).type == DEVICE.type
        kwargs = {**kwargs, "device": torch.device("cpu")}
    else:
        there = bool(held)

    if kwargs.get("pin_memory"):
        kwargs = {**kwargs, "pin_memory": False}

    def inside(x: Any) -> Any:
        return x.held if isinstance(x, Pretended) else x

    def outside(x: Any) -> Any:
        if not (there and isinstance(x, torch.Tensor)):
            return x
        return held[id(x)] if id(x) in held else Pretended(x)

    return tree.tree_map(
        outside, func(*tree.tree_map(inside, (args)), **tree.tree_map(inside, kwargs))
    )


def _check_places(func: Any, args: Any, given: list[torch.Tensor]) -> None:
    """Raise what CUDA would; numbers, which are tensors without dimensions, may be anywhere."""
    there = [x for x in given if isinstance(x, Pretended)]
    here = [x for x in given if not isinstance(x, Pretended) and x.dim() > 0]
    may_mix = func in COPIES or (func in INDEXED and isinstance(args[0], Pretended))
    if there and here and not may_mix:
        raise RuntimeError(f"{func}: expected all tensors to be on the same device")


@contextmanager
def gpu() -> Iterator[None]:
    """Let torch find a GPU, in the calling thread."""
    torch._C._ensureCUDADeviceGuardSet()  # type: ignore[attr-defined]
    with pytest.MonkeyPatch.context() as patch, _Device():
        patch.setattr(torch.cuda, "_lazy_init", lambda: None)
        patch.setattr(torch.cuda, "is_available", lambda: True)
        patch.setattr(torch.cuda, "is_bf16_supported", lambda *_, **__: True)
        patch.setattr(torch, "Generator", _Generator)
        patch.setattr(torch.Tensor, "pin_memory", lambda self: self)
        for flag in ("allow_tf32", "deterministic"):
            patch.setattr(torch.backends.cudnn, flag, getattr(torch.backends.cudnn, flag))
        for name in ("__enter__", "__exit__"):
            patch.setattr(torch.inference_mode, name, getattr(_NoGradients, name))
        _let(True)
        try:
            yield
        finally:
            _let(False)


def _let(yes: bool) -> None:
    """Let modules move to other classes of tensors, and numbers become such."""
    torch.__future__.set_swap_module_params_on_conversion(yes)
    torch._C._set_only_lift_cpu_tensors(yes)  # type: ignore[attr-defined]
