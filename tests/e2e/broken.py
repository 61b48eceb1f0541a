"""What the ranks of test_broken_models.py run."""

from __future__ import annotations

import time

import torch
from tests.e2e.quiet import quiet
from tests.e2e.streamed import prompt

from layercast import Group
from layercast.errors import GroupError, LayercastError


def raises_once(group: Group, path: str, depth: int) -> tuple[list[str], float]:
    """Rank 1's model raises in layer 2, and tries again; rank 0 knows nothing. What each was told, and in what time."""
    quiet()
    from layercast.integrations.transformers import load

    told = []
    with torch.inference_mode(), load(path, group=group, depth=depth) as attached:
        ids = prompt(attached.model.config.vocab_size)
        attached.model(ids)

        def trouble(weights: object) -> None:
            if group.rank == 1 and weights.layer == 2:
                raise KeyError("the model's own words")

        attached.on_use.append(trouble)
        began = time.monotonic()
        for _ in range(2):
            try:
                attached.model(ids)
                told.append("logits")
            except (LayercastError, KeyError) as error:
                told.append(f"{type(error).__name__}: {error}")
                assert group.rank == 1 or isinstance(error, GroupError)
        return told, time.monotonic() - began


def beside_the_callers_own(group: Group, path: str) -> float:
    """The caller's default process group is not touched, and two models have sums of their own."""
    quiet()
    import torch.distributed as dist

    from layercast.integrations.transformers import load

    store = dist.FileStore(f"{path}/store-{group.tp}", group.tp)
    dist.init_process_group("gloo", store=store, rank=group.rank, world_size=group.tp)
    with torch.inference_mode(), load(path, group=group) as first:
        ids = prompt(first.model.config.vocab_size)
        with load(path, group=group) as second:
            assert torch.equal(first.model(ids).logits, second.model(ids).logits)
        first.model(ids)
    number = torch.ones(1)
    dist.all_reduce(number)
    dist.destroy_process_group()
    return float(number)
