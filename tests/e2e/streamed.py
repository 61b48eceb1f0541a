"""What the ranks of test_streamed_models.py run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from tests.e2e.quiet import quiet

from layercast import Group

TOKENS = 40


def prompt(vocab: int) -> torch.Tensor:
    return torch.randint(0, vocab, (1, TOKENS), generator=torch.Generator().manual_seed(1))


def logits(group: Group | None, path: str, dtype: str, depth: int) -> tuple[torch.Tensor, dict[str, Any]]:
    """Of the streamed model, the same at the second time; and what the stream did."""
    from layercast.integrations.transformers import load

    with torch.no_grad(), load(path, group=group, dtype=getattr(torch, dtype), depth=depth) as attached:
        assert not any(".experts." in name for name, _ in attached.model.named_parameters())
        ids = prompt(attached.model.config.vocab_size)
        first = attached.model(ids).logits
        assert torch.equal(first, attached.model(ids).logits)
        return first, attached.stream.statistics()


def all_logits(
    group: Group, plan: Sequence[tuple[str, str]], dtypes: Sequence[str]
) -> dict[tuple[str, str], torch.Tensor]:
    """Every model in every dtype, one device layer."""
    quiet()
    return {(name, dtype): logits(group, path, dtype, depth=1)[0] for name, path in plan for dtype in dtypes}
