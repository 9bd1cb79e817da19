"""The network as a whole: encoder, evidence head and posterior flow, rebuilt from config."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from broker_filter.inference.encoder import build_encoder
from broker_filter.inference.evidence import EvidenceHead
from broker_filter.inference.posterior import build_estimator
from broker_filter.inference.prior import BoxPrior

__all__ = ["Network"]


class Network(nn.Module):
    """One encoder that both the evidence head and the flow read.

    Parameters
    ----------
    config : mapping
        Keys ``encoder`` (``name`` and options), ``evidence`` (``lookalikes`` and options),
        ``flow`` (options) and ``prior`` (see `BoxPrior.to_config`).

    Notes
    -----
    ``evidence`` is the head for lens against constant star. With ``lookalikes`` there is a second
    one, for lens against variable star; None if not.
    """

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        encoder = build_encoder(**config["encoder"])
        prior = BoxPrior.from_config(config["prior"])
        self.estimator = build_estimator(encoder, prior, **config["flow"])
        self.summary_width = encoder.summary_width
        options = dict(config["evidence"])
        second = options.pop("lookalikes", False)
        self.evidence = EvidenceHead(self.summary_width, **options)
        self.lookalikes = EvidenceHead(self.summary_width, **options) if second else None

    @property
    def encoder(self) -> nn.Module:
        """The embedding net of the estimator."""
        return self.estimator.embedding_net

    def forward(
        self, x: Tensor, baseline_error: Tensor | None = None, star_noise: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """``x``, shape (B, L, 3) -> ln K, shape (B,), and the summaries s, shape (B, d).

        ``baseline_error``, shape (B,), is the 1-sigma relative error of each window's baseline;
        exact baselines if left out. ``star_noise``, shape (B, 3), is what is known of each star's
        noise; nothing if left out.
        """
        s = self.encoder(x, baseline_error, star_noise)
        with torch.autocast(x.device.type, enabled=False):
            return self.evidence(s), s
