from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from layercast.checkpoint.formats import FORMATS
from layercast.errors import ConfigError, GeometryError
from layercast.geometry import SHAPES, ExpertLayout, Kind, fp8_block_layout, ranks_that_work

# published bytes for H = 4096, I = 2048: w13, its scale, w2, its scale, expert, layer of 288 experts
TABLE = {
    1: (16777216, 4096, 8388608, 2048, 25171968, 7249526784),
    2: (8388608, 2048, 4194304, 1024, 12585984, 3624763392),
    4: (4194304, 1024, 2097152, 512, 6292992, 1812381696),
    8: (2097152, 512, 1048576, 256, 3146496, 906190848),
}


@pytest.mark.parametrize("tp", TABLE)
def test_bytes_of_the_published_table(tp: int) -> None:
    shape = SHAPES["glm-5-next"]
    layout = shape.layout(tp)
    assert layout.sizes == TABLE[tp][:4]
    assert layout.nbytes == TABLE[tp][4]
    assert layout.nbytes * shape.experts == TABLE[tp][5]


def test_named_shapes() -> None:
    seen = {name: (s.hidden, s.intermediate, s.experts, s.layers[0], s.layers[-1]) for name, s in SHAPES.items()}
    assert seen == {
        "glm-5-next": (4096, 2048, 288, 3, 44),
        "deepseek-v3": (7168, 2048, 256, 3, 60),
        "qwen3-235b": (4096, 1536, 128, 0, 93),
        "qwen3-30b": (2048, 768, 128, 0, 47),
        "minimax-m2": (3072, 1536, 256, 0, 61),
    }
    assert len(SHAPES["glm-5-next"].layers) == 42


def test_kinds_have_order_shape_and_dtype() -> None:
    layout = fp8_block_layout(4096, 2048, 8)
    assert [(k.name, k.shape, k.dtype, k.itemsize) for k in layout.kinds] == [
        ("w13", (512, 4096), "float8_e4m3fn", 1),
        ("w13_scale", (4, 32), "float32", 4),
        ("w2", (4096, 256), "float8_e4m3fn", 1),
        ("w2_scale", (32, 2), "float32", 4),
    ]
    assert (layout.format, layout.block, layout.intermediate_per_rank) == ("fp8_block", (128, 128), 256)
    assert layout.kind_index("w2") == 2


@pytest.mark.parametrize(
    ("intermediate", "tp", "rows", "work"),
    [(1536, 8, 192, "1, 2, 3, 4, 6"), (320, 2, 160, "1"), (768, 4, 192, "1, 2, 3, 6"), (10944, 2, 5472, "1")],
)
def test_case_09_off_the_grid_is_refused(intermediate: int, tp: int, rows: int, work: str) -> None:
    with pytest.raises(GeometryError) as caught:
        fp8_block_layout(2048, intermediate, tp)
    assert f"I = {intermediate}" in caught.value.message
    assert f"T = {tp} ranks" in caught.value.message
    assert f"Ir = I / T = {rows} rows" in caught.value.message
    assert "128 x 128" in caught.value.message
    assert caught.value.hint.endswith(f": {work}")


def test_case_09_not_whole_rows_is_refused() -> None:
    with pytest.raises(GeometryError, match=r"682\.67 is not a whole number"):
        fp8_block_layout(2048, 2048, 3)


def test_case_09_whole_experts_may_end_inside_a_block() -> None:
    layout = fp8_block_layout(4096, 10944, 1)
    assert layout.kinds[1].shape == (2 * 86, 32)
    assert layout.kinds[3].shape == (32, 86)


# design table, H = 4096, I = 2048, T = 4: shape and dtype of each kind
KINDS = {
    "fp8_channel": [((1024, 4096), "float8_e4m3fn"), ((1024,), "float32"), ((4096, 512), "float8_e4m3fn"),
                    ((4096,), "float32")],
    "bf16": [((1024, 4096), "bfloat16"), ((4096, 512), "bfloat16")],
    "mxfp8": [((1024, 4096), "float8_e4m3fn"), ((1024, 128), "float8_e8m0fnu"), ((4096, 512), "float8_e4m3fn"),
              ((4096, 16), "float8_e8m0fnu")],
    "mxfp4": [((1024, 2048), "uint8"), ((1024, 128), "float8_e8m0fnu"), ((4096, 256), "uint8"),
              ((4096, 16), "float8_e8m0fnu")],
    "int4": [((1024, 2048), "uint8"), ((1024, 128), "bfloat16"), ((4096, 256), "uint8"), ((4096, 16), "bfloat16")],
}  # fmt: skip


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_every_format(name: str) -> None:
    layout = FORMATS[name].layout(4096, 2048, 4)
    assert [(kind.shape, kind.dtype) for kind in layout.kinds] == KINDS[name]
    assert layout.names == (("w13", "w13_scale", "w2", "w2_scale") if len(KINDS[name]) == 4 else ("w13", "w2"))


def test_biases_come_last() -> None:
    layout = FORMATS["mxfp4"].with_bias("BF16").layout(2880, 2880, 2)
    assert [(kind.name, kind.shape) for kind in layout.kinds[4:]] == [("w13_bias", (2880,)), ("w2_bias", (2880,))]


def test_a_finer_grid_says_its_blocks() -> None:
    layout = FORMATS["fp8_block"].layout(2048, 768, 4, "finer")
    assert [(kind.shape, kind.block) for kind in layout.kinds if kind.block] == [
        ((2 * 3, 16), (64, 128)),
        ((16, 3), (128, 64)),
    ]
    assert layout.block == (128, 128)
    with pytest.raises(GeometryError, match="off_grid is 'round'"):
        FORMATS["fp8_block"].layout(2048, 768, 4, "round")  # type: ignore[arg-type]


@pytest.mark.parametrize("sizes", [(2048, 100), (100, 2048)])
def test_groups_are_whole(sizes: tuple[int, int]) -> None:
    for name in ("mxfp8", "mxfp4", "int4"):
        with pytest.raises(GeometryError, match="= 100 is no whole number of groups of 32"):
            FORMATS[name].layout(*sizes, 1)


def test_scales_of_a_fused_w13_are_counted_per_half() -> None:
    # 192 rows have 2 scale rows; 384 rows taken together would have 3 and not 4
    assert fp8_block_layout(256, 192, 1).kinds[1].shape[0] == 4


def test_block_need_not_be_square() -> None:
    layout = fp8_block_layout(256, 256, 2, block=(64, 128))
    assert [kind.shape for kind in layout.kinds] == [(256, 256), (4, 2), (256, 128), (4, 1)]
    with pytest.raises(GeometryError, match="64 x 128"):
        fp8_block_layout(256, 128, 2, block=(64, 128))


@pytest.mark.parametrize("bad", [0, -1, True, 1.0, "2"])
def test_sizes_must_be_whole_numbers(bad: object) -> None:
    for sizes in ((bad, 256, 1), (256, bad, 1), (256, 256, bad)):
        with pytest.raises(GeometryError, match="whole number"):
            fp8_block_layout(*sizes)  # type: ignore[arg-type]


def test_overflow_is_refused_at_construction() -> None:
    with pytest.raises(GeometryError, match=r"2\^63"):
        fp8_block_layout(1 << 40, 1 << 40, 1)
    with pytest.raises(GeometryError, match=r"2\^63"):  # what one rank holds fits, what all hold does not
        ExpertLayout((Kind("w13", (1 << 62,), "uint8"),), 1, 1, 4, "fp8_block", (1, 1))


def test_unknown_kind_or_dtype() -> None:
    with pytest.raises(GeometryError, match="w2_scale"):
        fp8_block_layout(256, 256, 1).kind_index("w4")
    with pytest.raises(GeometryError, match="float12"):
        Kind("w13", (1,), "float12")
    assert issubclass(GeometryError, ConfigError)


sizes = st.integers(1, 40).map(lambda n: n * 64)
blocks = st.tuples(st.sampled_from([32, 64, 128]), st.sampled_from([32, 64, 128]))


@given(hidden=sizes, intermediate=sizes, tp=st.integers(1, 8), block=blocks)
def test_ranks_share_an_expert_or_are_refused(hidden: int, intermediate: int, tp: int, block: tuple[int, int]) -> None:
    on_grid = tp == 1 or (intermediate % tp == 0 and all(intermediate // tp % size == 0 for size in block))
    assert (tp in ranks_that_work(intermediate, block)) == on_grid
    if not on_grid:
        with pytest.raises(GeometryError, match=f"I = {intermediate} cannot be cut for T = {tp}"):
            fp8_block_layout(hidden, intermediate, tp, block=block)
        return
    whole = fp8_block_layout(hidden, intermediate, 1, block=block)
    part = fp8_block_layout(hidden, intermediate, tp, block=block)
    assert [size * tp for size in part.sizes] == list(whole.sizes)
    assert all(kind.nbytes == math.prod(kind.shape) * kind.itemsize for kind in part.kinds)
