"""The tests' quantisers against compressed-tensors and torchao: the same codes, the same scales."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch", reason="the e2e group is not installed")
pytest.importorskip("compressed_tensors", reason="the e2e group is not installed")

from tests.e2e.quantisers import fp8_block, fp8_channel, int4, mxfp4, mxfp8  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture
def matrix():
    generator = torch.Generator().manual_seed(3)
    found = torch.randn(256, 384, generator=generator) * torch.rand(256, 1, generator=generator)
    return found.to(torch.bfloat16)


def test_mxfp8_is_torchaos(matrix) -> None:
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    scale, codes = to_mx(matrix, torch.float8_e4m3fn, 32)
    ours, our_scale = mxfp8(matrix)
    assert torch.equal(scale.view(torch.uint8).reshape(our_scale.shape), our_scale)
    assert torch.equal(codes.view(torch.uint8).reshape(ours.shape), ours.view(torch.uint8))


def test_mxfp4_is_torchaos(matrix) -> None:
    from torchao.prototype.mx_formats.mx_tensor import to_mx

    scale, codes = to_mx(matrix, torch.float4_e2m1fn_x2, 32)
    ours, our_scale = mxfp4(matrix)
    assert torch.equal(scale.view(torch.uint8).reshape(our_scale.shape), our_scale)
    assert torch.equal(codes.view(torch.uint8).reshape(ours.shape), ours)


def test_mxfp4_rounds_half_to_even() -> None:
    halves = torch.tensor([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, 6.0] * 4)[None]
    packed = mxfp4(halves)[0][0, :4]
    codes = torch.stack([packed & 15, packed >> 4], dim=1).flatten().tolist()
    assert codes == [0, 2, 2, 4, 4, 6, 6, 7]


def arguments(**how):
    from compressed_tensors.quantization import QuantizationArgs

    return QuantizationArgs(symmetric=True, dynamic=False, **how)


def test_fp8_channel_is_compressed_tensors(matrix) -> None:
    from compressed_tensors.quantization.lifecycle.forward import quantize

    ours, scale = fp8_channel(matrix)
    how = arguments(num_bits=8, type="float", strategy="channel")
    theirs = quantize(matrix.float(), scale.float(), None, how, dtype=torch.float8_e4m3fn)
    assert torch.equal(theirs.view(torch.uint8), ours.view(torch.uint8))


def test_fp8_block_is_compressed_tensors(matrix) -> None:
    from compressed_tensors.quantization.lifecycle.forward import quantize

    ours, scale = fp8_block(matrix)
    how = arguments(num_bits=8, type="float", strategy="block", block_structure=[128, 128])
    theirs = quantize(matrix.float(), scale, None, how, dtype=torch.float8_e4m3fn)
    assert torch.equal(theirs.view(torch.uint8), ours.view(torch.uint8))


def test_int4_is_compressed_tensors(matrix) -> None:
    from compressed_tensors.compressors.pack_quantized.helpers import pack_to_int32
    from compressed_tensors.quantization.lifecycle.forward import quantize

    ours, scale = int4(matrix)
    how = arguments(num_bits=4, type="int", strategy="group", group_size=32)
    theirs = quantize(matrix.float(), scale.float(), None, how, dtype=torch.int8)
    assert torch.equal(pack_to_int32(theirs, 4), ours)
