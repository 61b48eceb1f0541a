"""LayerStream: right bytes in every use, whatever the order; failures surface where they belong; nothing stays."""

from __future__ import annotations

import pytest

from layercast import launch
from tests.stream import ranks


@pytest.mark.parametrize("tp", [1, 2])
def test_every_order_is_right(tp: int) -> None:
    """Layers 1-7 x depth 1-4 x order: right bytes in every use, and a straight order is learned at once."""
    results = launch(ranks.sweep, tp, timeout=100)
    assert len(results[0]) == 7 * 4 * 4
    for layers, depth, name, bad, figures in (row for rows in results for row in rows):
        case = f"{layers} layers, depth {depth}, {name}: {figures}"
        assert bad == 0, case
        uses = 6 * layers if name == "repeated" else 3 * layers
        assert figures["uses"] == uses, case
        if depth >= layers:
            assert figures["loads"] == layers, f"{case}: everything fits, nothing is loaded twice"
        if name == "straight":
            assert figures["wasted"] == 0, case
            assert figures["loads"] <= uses + depth, case
        if name == "random":
            assert figures["wasted"] <= uses, case
    # every rank decides alike
    assert all([row[4]["loads"] for row in rows] == [row[4]["loads"] for row in results[0]] for rows in results)


@pytest.mark.parametrize("tp", [1, 2])
def test_selected_experts(tp: int) -> None:
    assert launch(ranks.selections, tp, timeout=60) == [[]] * tp


@pytest.mark.parametrize("tp", [1, 2])
@pytest.mark.parametrize(
    "what", [ranks.failing_prefetch, ranks.cancelled_prefetch, ranks.misuse, ranks.fence_that_raises, ranks.forked]
)
def test_failures_belong_to_their_layer(tp: int, what) -> None:
    launch(what, tp, timeout=60)


def test_a_disagreement_names_both_orders() -> None:
    texts = launch(ranks.disagreement, 2, timeout=60)
    for rank, text in enumerate(texts):
        assert "rank 0 joined layer 5" in text and "rank 1 layer 6" in text, text
        assert "all had loaded 0, 1, 2, 3" in text and f"rank {rank} went on with" in text, text


def test_limits_count_from_the_moment_of_waiting() -> None:
    text, _ = launch(ranks.absent, 2, timeout=60)
    assert "rank 1" in text and "has not joined" in text, text


@pytest.mark.parametrize("tp", [1, 2])
def test_layers_from_an_arena_need_no_writer(tp: int) -> None:
    assert launch(ranks.from_arena, tp, timeout=60) == [[True, False, True, False] * 2] * tp


def test_another_depth_is_refused() -> None:
    launch(ranks.other_depth, 2, timeout=60)


def test_limits_start_anew_with_every_load() -> None:
    launch(ranks.moving, 2, timeout=60)


def test_a_dropped_stream_leaves_no_thread() -> None:
    assert launch(ranks.dropped, 1, timeout=60) == [0]


def test_the_interpreter_ends_with_an_open_stream() -> None:
    launch(ranks.left_open, 2, timeout=60)
