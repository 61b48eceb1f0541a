"""The torch reference of routed experts against a plain loop; tensors end with their layer."""

from __future__ import annotations

import importlib.util

import pytest

if importlib.util.find_spec("torch") is None:
    pytest.skip("needs torch", allow_module_level=True)

import torch
from tests.e2e.quantisers import QUANTISERS

from layercast import errors, open_device
from layercast.checkpoint.formats import FORMATS
from layercast.integrations import torch as ours
from layercast.stream.views import LayerWeights

HIDDEN, INNER, EXPERTS, TOKENS, TOP = 256, 128, 5, 37, 2
SUPPORTED = ("fp8_block", "fp8_channel", "mxfp8", "bf16", "fp16")


class Layer:
    """Random experts in a format, as a loaded layer, and what they are in float32."""

    def __init__(self, form: str, hidden: int = HIDDEN, inner: int = INNER) -> None:
        torch.manual_seed(3)
        layout = FORMATS[form].layout(hidden, inner, 1)
        self.w13, self.w2 = [], []
        kinds: dict[str, list[torch.Tensor]] = {kind.name: [] for kind in layout.kinds}
        for _ in range(EXPERTS):
            gate, up, down = (torch.randn(shape) / 16 for shape in ((inner, hidden), (inner, hidden), (hidden, inner)))
            parts = [self._quantised(form, matrix) for matrix in (gate, up, down)]
            kinds["w13"].append(torch.cat([parts[0][0], parts[1][0]]))
            kinds["w2"].append(parts[2][0])
            if "w13_scale" in kinds:
                kinds["w13_scale"].append(torch.cat([parts[0][1], parts[1][1]]))
                kinds["w2_scale"].append(parts[2][1])
            self.w13.append(torch.cat([parts[0][2], parts[1][2]]))
            self.w2.append(parts[2][2])
        self.memory = {name: torch.stack(values) for name, values in kinds.items()}
        self.weights = LayerWeights(
            3, layout, EXPERTS, None, [value.data_ptr() for value in self.memory.values()], open_device("host")
        )

    @staticmethod
    def _quantised(form: str, matrix: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Codes, scales, and the same numbers in float32, by a plain loop over blocks."""
        if form in ("bf16", "fp16"):
            value = matrix.to(torch.bfloat16 if form == "bf16" else torch.float16)
            return value, torch.empty(0), value.float()
        codes, scales = QUANTISERS[form](matrix.to(torch.bfloat16))
        codes = codes.view(torch.float8_e4m3fn)
        factors = scales.view(torch.float8_e8m0fnu).float() if form == "mxfp8" else scales.float()
        rows, columns = FORMATS[form].weights.block
        value = codes.float()
        factors = factors.reshape(factors.shape[0], -1)
        for row in range(value.shape[0]):
            for column in range(value.shape[1]):
                value[row, column] *= factors[row // rows, column // columns if columns else 0]
        scales = scales.reshape(-1).float() if form == "fp8_channel" else scales
        return codes, (scales if form == "mxfp8" else scales.float()), value


def loop(x: torch.Tensor, ids: torch.Tensor, factors: torch.Tensor, layer: Layer) -> torch.Tensor:
    out = torch.zeros_like(x)
    for token in range(x.shape[0]):
        for k in range(ids.shape[1]):
            if 0 <= (expert := int(ids[token, k])) < EXPERTS:
                gate, up = (layer.w13[expert] @ x[token]).chunk(2)
                out[token] += factors[token, k] * (layer.w2[expert] @ (torch.nn.functional.silu(gate) * up))
    return out


def inputs(seed: int = 0, hidden: int = HIDDEN) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(seed)
    ids = torch.stack([torch.randperm(EXPERTS)[:TOP] for _ in range(TOKENS)])
    return torch.randn(TOKENS, hidden), ids, torch.rand(TOKENS, TOP)


@pytest.mark.parametrize("form", SUPPORTED)
def test_equals_a_plain_loop(form: str) -> None:
    layer = Layer(form)
    x, ids, factors = inputs()
    expected = loop(x, ids, factors, layer)
    assert torch.allclose(ours.moe_forward(x, ids, factors, layer.weights), expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("inner", [192, 64, 320])
def test_blocks_that_are_a_part_of_one(inner: int) -> None:
    """Gate's last block ends before up begins."""
    layer = Layer("fp8_block", hidden=200, inner=inner)
    x, ids, factors = inputs(4, 200)
    expected = loop(x, ids, factors, layer)
    assert torch.allclose(ours.moe_forward(x, ids, factors, layer.weights), expected, atol=1e-5, rtol=1e-5)


def test_in_steps_and_for_some_experts_only(monkeypatch: pytest.MonkeyPatch) -> None:
    layer = Layer("fp8_block")
    x, ids, factors = inputs(1)
    ids[ids == 3] = 0  # an expert that nobody chose
    ids[0, 0], ids[1, 1] = -1, EXPERTS  # another rank's
    expected = loop(x, ids, factors, layer)
    monkeypatch.setattr(ours, "_STEP_BYTES", 2 * 3 * HIDDEN * INNER * 4)
    assert torch.allclose(ours.moe_forward(x, ids, factors, layer.weights), expected, atol=1e-5, rtol=1e-5)
    nobody = torch.full_like(ids, EXPERTS)
    assert not ours.moe_forward(x, nobody, factors, layer.weights).any()


def test_sizes_that_the_grouped_kernel_does_not_take() -> None:
    layer = Layer("bf16", hidden=33, inner=31)
    x, ids, factors = inputs(2, 33)
    expected = loop(x, ids, factors, layer)
    assert torch.allclose(ours.moe_forward(x, ids, factors, layer.weights), expected, atol=1e-4, rtol=1e-4)


def test_bad_arguments_are_refused() -> None:
    layer = Layer("fp8_block")
    x, ids, factors = inputs()
    for arguments in ((x[:, :-1], ids, factors), (x, ids[:-1], factors[:-1]), (x, ids, factors[:, :1])):
        with pytest.raises(errors.ConfigError, match="expected"):
            ours.moe_forward(*arguments, layer.weights)


@pytest.mark.parametrize("inference", [False, True])
def test_tensors_end_with_their_layer(inference: bool) -> None:
    layer = Layer("fp8_block")
    with torch.inference_mode(inference):
        kinds = ours.tensors(layer.weights)
    assert kinds["w13"].dtype == torch.float8_e4m3fn and kinds["w13"].shape == (EXPERTS, 2 * INNER, HIDDEN)
    assert kinds["w2_scale"].dtype == torch.float32
    for name, found in kinds.items():
        assert found.data_ptr() == layer.memory[name].data_ptr()
    layer.weights.release()
    assert all(found.numel() == 0 for found in kinds.values())
    with pytest.raises(errors.StateError, match="layer 3 has been released"):
        ours.tensors(layer.weights)
