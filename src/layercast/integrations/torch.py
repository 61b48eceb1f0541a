"""Device layers as torch tensors, a mixture-of-experts forward over them, and the sum over tensor-parallel ranks."""

from __future__ import annotations

import datetime
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from layercast.errors import ConfigError, StateError
from layercast.integrations import FORMATS
from layercast.stream.views import LayerWeights, View

try:
    import torch
    import torch.distributed as dist
    from torch.nn import functional
except ImportError as missing:
    raise ImportError("layercast.integrations.torch needs torch: pip install 'layercast[torch]'") from missing

if TYPE_CHECKING:
    from layercast.group import Group

Tensor = torch.Tensor
#: [tokens, 2 Ir] of gate's, then up's outputs to [tokens, Ir].
Gate = Callable[[Tensor], Tensor]

_STEP_BYTES = 256 << 20  # of dequantised weights at a time


def tensor(view: View) -> Tensor:
    """A view's memory as a tensor of its own dtype, float8 included, without a copy.

    Valid until the layer is released: the tensor is empty from then on. Views of it that were made by slicing are not
    ended; do not keep them.
    """
    found = torch.utils.dlpack.from_dlpack(view)

    def end() -> None:
        with torch.inference_mode():  # allows it for tensors of either mode
            found.set_()  # type: ignore[call-overload]

    view.on_release(end)
    return found


def tensors(weights: LayerWeights) -> dict[str, Tensor]:
    """All kinds of a layer by name: w13 [experts, 2 Ir, H], w13_scale, w2 [experts, H, Ir], w2_scale."""
    return {name: tensor(view) for name, view in weights.items()}


def dequantise(weight: Tensor, scale: Tensor | None, block: tuple[int, int] | None, dtype: torch.dtype) -> Tensor:
    """weight [n, rows, columns] times its scales, in float32, then as `dtype`.

    `scale`: one per `block` (rows x columns) of the weight, [n, row blocks, column blocks], or [n, rows] for one per
    row. The last block of either axis may be a part of one. None: the weight as it is.
    """
    if scale is None:
        return weight.to(dtype)
    if block is None:
        raise ConfigError("dequantise: scales without a block shape")
    rows, columns = weight.shape[1:]
    factors = scale.float()
    if factors.dim() == 2:  # a scale per row
        factors = factors.unsqueeze(-1)
    values = weight.float()
    if factors.shape[2] > 1 and rows == factors.shape[1] * block[0] and columns == factors.shape[2] * block[1]:
        tiles = values.view(-1, factors.shape[1], block[0], factors.shape[2], block[1])  # whole blocks: in place
        tiles.mul_(factors[:, :, None, :, None])
        return values.to(dtype)
    if factors.shape[1] != rows:
        factors = factors.repeat_interleave(block[0], dim=1)[:, :rows]
    if factors.shape[2] != 1:
        factors = factors.repeat_interleave(block[1], dim=2)[:, :, :columns]
    return values.mul_(factors).to(dtype)


def _silu_and_mul(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return functional.silu(gate) * up


def moe_forward(
    x: Tensor,
    topk_ids: Tensor,
    topk_weights: Tensor,
    weights: LayerWeights,
    *,
    gate: Gate = _silu_and_mul,
    group: TensorParallel | None = None,
) -> Tensor:
    """The routed experts' output for every token: sum over k of topk_weights * expert(x).

    x [tokens, H]; topk_ids [tokens, k], ids of experts, those out of range or of other ranks count nothing;
    topk_weights [tokens, k]; `weights`: the layer. `gate`: from [.., 2 Ir] (gate's outputs, then up's) to [.., Ir].
    Returns [tokens, H] in x's dtype; with `group` the sum over its ranks, which each hold a slice of every expert.

    Experts that no token chose are neither dequantised nor multiplied. Products are taken in x's dtype, by
    torch's grouped matmul, some experts at a time, so that no more than 256 MiB are dequantised at once. Raises
    ConfigError for a format that cannot be computed with here (packed 4 bit), or with biases.
    """
    layout = weights.layout
    if layout.format not in FORMATS or weights.w13_bias is not None:
        what = f"{layout.format} with biases" if weights.w13_bias is not None else layout.format
        raise ConfigError(f"moe_forward: format {what} is not supported", hint=f"supported: {', '.join(FORMATS)}")
    if x.dim() != 2 or x.shape[1] != layout.hidden:
        raise ConfigError(f"moe_forward: x: expected [tokens, {layout.hidden}], got {list(x.shape)}")
    if topk_ids.shape != topk_weights.shape or topk_ids.shape[:1] != x.shape[:1]:
        raise ConfigError(
            f"moe_forward: topk_ids and topk_weights: expected [{x.shape[0]}, k], got {list(topk_ids.shape)} and"
            f" {list(topk_weights.shape)}"
        )
    if torch.is_grad_enabled() and x.requires_grad:
        raise ConfigError("moe_forward: streamed experts have no gradients", hint="call under torch.inference_mode()")
    with torch.no_grad():
        shares = group is not None and group.ranks > 1
        out = _routed(x, topk_ids, topk_weights, weights, gate, shares=shares)
        if group is not None:
            group.all_reduce(out)
    return out.to(x.dtype)


def _routed(
    x: Tensor, topk_ids: Tensor, topk_weights: Tensor, weights: LayerWeights, gate: Gate, *, shares: bool
) -> Tensor:
    """In float32 [tokens, H]. Rounded on the way as transformers' own experts are, unless these are `shares`."""
    tokens, chosen = topk_ids.shape
    flat = _places(topk_ids.reshape(-1), weights)
    flat = torch.where((flat < 0) | (flat >= weights.num_experts), weights.num_experts, flat)
    ids, order = torch.sort(flat, stable=True)  # sorted by expert, those of no rank here last
    counts = torch.bincount(ids, minlength=weights.num_experts + 1)[: weights.num_experts]
    hit = counts.nonzero().reshape(-1)
    per_hit = counts[hit].tolist()
    _check_loaded(hit.tolist(), weights)
    rows = x[order // chosen]
    results = torch.zeros((tokens * chosen, weights.layout.hidden), dtype=x.dtype, device=x.device)
    first = 0
    for w13, w2, step in _steps(weights, hit, x.dtype):
        sizes = per_hit[step.start : step.stop]
        last = first + sum(sizes)
        ends = torch.tensor(sizes, device=x.device).cumsum(0).to(torch.int32)
        inner = gate(_grouped(rows[first:last], w13, ends, sizes))
        results[first:last] = _grouped(inner, w2, ends, sizes)
        first = last
    back = torch.empty_like(order)
    back[order] = torch.arange(order.numel(), device=x.device)
    if shares:  # more is to be added: round once, at the end
        results = results.float()
    weighted = results[back] * topk_weights.reshape(-1, 1).to(results.dtype)
    return weighted.float().reshape(tokens, chosen, -1).sum(dim=1)


def _places(ids: Tensor, weights: LayerWeights) -> Tensor:
    """Where experts are among the views; -1 for those of other ranks."""
    if weights.placed is None:
        return ids
    owned = torch.tensor(weights.placed, device=ids.device, dtype=ids.dtype)
    last = int(max(owned.max(), ids.max())) + 1 if owned.numel() else int(ids.max()) + 1
    table = torch.full((last + 1,), -1, device=ids.device, dtype=ids.dtype)
    table[owned.long()] = torch.arange(owned.numel(), device=ids.device, dtype=ids.dtype)
    return table[ids.long().clamp(-1, last)]


def _check_loaded(hit: Sequence[int], weights: LayerWeights) -> None:
    if weights.experts is not None and (absent := sorted(set(hit) - set(weights.experts))):
        raise ConfigError(f"moe_forward: tokens chose experts {absent[:8]}, which were not loaded")


def _steps(weights: LayerWeights, hit: Tensor, dtype: torch.dtype) -> Iterator[tuple[Tensor, Tensor, slice]]:
    """Some experts at a time: their w13 and w2 in `dtype`."""
    kinds = tensors(weights)
    blocks = {kind.name: kind.block for kind in weights.layout.kinds}
    each = (kinds["w13"][0].numel() + kinds["w2"][0].numel()) * torch.finfo(dtype).bits // 8
    at_once = max(1, _STEP_BYTES // each)
    whole = hit.numel() == weights.num_experts
    for start in range(0, hit.numel(), at_once):
        step = slice(start, min(start + at_once, hit.numel()))

        def part(name: str, step: slice = step) -> Tensor | None:
            if name not in kinds:
                return None
            found = kinds[name]
            return found[step] if whole else found.view(_bytes_of(found))[hit[step]].view(found.dtype)

        w13, w2 = part("w13"), part("w2")
        assert w13 is not None and w2 is not None
        yield (
            _dequantised_halves(w13, part("w13_scale"), blocks.get("w13_scale"), dtype),
            dequantise(w2, part("w2_scale"), blocks.get("w2_scale"), dtype),
            step,
        )


def _dequantised_halves(w13: Tensor, scale: Tensor | None, block: tuple[int, int] | None, dtype: torch.dtype) -> Tensor:
    """Gate and up have blocks of their own: where the last one is a part of a block, up does not go on in it."""
    halves = w13.reshape(2 * w13.shape[0], -1, *w13.shape[2:])
    scales = None if scale is None else scale.reshape(2 * scale.shape[0], -1, *scale.shape[2:])
    return dequantise(halves, scales, block, dtype).reshape(w13.shape)


def _bytes_of(found: Tensor) -> torch.dtype:
    """An integer type of the same size: indexing knows no 8-bit floats everywhere."""
    return {1: torch.uint8, 2: torch.int16, 4: torch.int32}[found.element_size()]


def _grouped(rows: Tensor, matrices: Tensor, ends: Tensor, sizes: Sequence[int]) -> Tensor:
    """rows [n, K], sorted by matrix, times matrices [m, N, K] transposed: [n, N]."""
    # The kernel wants rows of whole 16 bytes.
    aligned = all(size * matrices.element_size() % 16 == 0 for size in matrices.shape[1:])
    if hasattr(functional, "grouped_mm") and aligned and rows.dtype in (torch.bfloat16, torch.float32, torch.float16):
        return functional.grouped_mm(rows, matrices.transpose(-2, -1), offs=ends)
    parts = torch.split(rows, list(sizes))
    return torch.cat([functional.linear(part, matrix) for part, matrix in zip(parts, matrices, strict=True)])


def fence() -> Callable[[], object]:
    """For `LayerStream(fence=...)` where the model computes on CUDA: an event on torch's current stream."""
    event: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    synchronize: Callable[[], object] = event.synchronize
    return synchronize


class TensorParallel:
    """The sum over the ranks of a `Group`, through a process group of torch.distributed that is this object's own.

    The default process group, and others of the caller, are neither needed nor touched.
    """

    def __init__(self, process_group: Any, ranks: int) -> None:
        self.ranks = ranks
        self._process_group = process_group
        self._broken = ""

    @classmethod
    def over(cls, group: Group, device: torch.device | str = "cpu", *, timeout: float = 600.0) -> TensorParallel:
        """Connect the ranks: NCCL where `device` is CUDA, Gloo elsewhere. Collective; one rank needs no connection.

        `timeout`: how long a sum waits for a rank that is alive but does not come, in seconds.
        """
        if group.tp == 1:
            return cls(None, 1)
        tag = group.next_tag("torch.distributed")
        mine = tempfile.mkdtemp(prefix="layercast-") if group.rank == 0 else ""
        where = group.gather(tag, mine)[0]
        distributed: Any = dist  # its classes are not in its type stubs as they are called
        store = distributed.FileStore(f"{where}/store", group.tp)
        if torch.device(device).type == "cuda":
            found: Any = distributed.ProcessGroupNCCL(store, group.rank, group.tp)
        else:
            found = distributed.ProcessGroupGloo(store, group.rank, group.tp, datetime.timedelta(seconds=timeout))
        parallel = cls(found, group.tp)
        parallel.all_reduce(torch.zeros(1, device=device))
        group.barrier(f"{tag} connected")
        if group.rank == 0:
            shutil.rmtree(where)
        return parallel

    def all_reduce(self, values: Tensor) -> None:
        """Sum in place over the ranks. StateError once this rank has given up (`give_up`, `close`)."""
        if self.ranks == 1:
            return
        if self._broken:
            raise StateError(f"the ranks are summed no more: {self._broken}")
        self._process_group.allreduce([values]).wait()

    def give_up(self, why: str) -> None:
        """This rank leaves the others' sums: theirs fail at once, and no later one of its own meets the wrong one."""
        if self.ranks > 1 and not self._broken:
            self._broken = why
            self._process_group.abort()
            self._process_group = None

    def close(self) -> None:
        """End the connection. Idempotent."""
        self.give_up("closed")
