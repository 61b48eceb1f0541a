"""Every cell of the table of docs/reference/formats.md, tried: checkpoints with the published I and a small H."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.formats.format_table import MODELS, RANKS, cell
from tests.formats.format_tools import same, values_on_rank, walk

from layercast.checkpoint import Checkpoint, write_synthetic_checkpoint
from layercast.errors import GeometryError

HIDDEN = 128
CELLS = [(name, form) for name, model in MODELS.items() for form in model.forms]


def numbers(checkpoint: Checkpoint, tp: int) -> list[list[np.ndarray]]:
    """Per rank gate [Ir, H], up [Ir, H] and down [H, Ir] of the first expert, dequantised with its own scales."""
    cut = checkpoint.blocks(checkpoint.layers[-1], tp)
    found = []
    for rank in range(tp):
        kinds = {kind.name: walk(cut.of(0, rank, number)) for number, kind in enumerate(cut.layout.kinds)}
        w13, w2 = values_on_rank(kinds, cut.layout)
        found.append([*np.split(w13, 2), w2])
    return found


@pytest.mark.parametrize(("name", "form"), CELLS)
def test_each_cell_is_what_happens(tmp_path: Path, name: str, form: str) -> None:
    model = MODELS[name]
    path = write_synthetic_checkpoint(
        tmp_path / "c", like=model.like, form=form, experts=1, hidden=HIDDEN, intermediate=model.inner, vocab=16
    )
    strict, finer = Checkpoint.open(path), Checkpoint.open(path, off_grid="finer")
    assert strict.family == model.family and strict.format == form
    [[gate, up, down]] = numbers(strict, 1)
    assert gate.shape == (model.inner, HIDDEN) and len(np.unique(gate)) > 10
    for tp in RANKS:
        said = cell(form, model.hidden, model.inner, tp)
        if said != "exact":
            with pytest.raises(GeometryError):
                strict.blocks(strict.layers[-1], tp)
        ranks = numbers(strict if said == "exact" else finer, tp)
        same(np.concatenate([rank[0] for rank in ranks]), gate)
        same(np.concatenate([rank[1] for rank in ranks]), up)
        same(np.concatenate([rank[2] for rank in ranks], axis=1), down)
