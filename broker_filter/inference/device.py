"""The device on which networks run."""

from __future__ import annotations

import torch

from broker_filter.errors import ModelError

__all__ = ["device_of"]


def device_of(name: str) -> torch.device:
    """The device of that name, on which float32 is float32 from now on.

    By itself cuDNN rounds what it convolves to ten bits (TF32). The matched filter's S would then
    be off by some 1e-4 of itself, and K of bright events with it.

    Parameters
    ----------
    name : str
        ``cpu`` or ``cuda``.

    Raises
    ------
    ModelError
        There is no such device.
    """
    if name == "cuda":
        if not torch.cuda.is_available():
            raise ModelError(
                "model.device is cuda but no GPU is usable; set it to cpu or mend the GPU"
            )
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cudnn.deterministic = True  # the same K at each run
    return torch.device(name)
