"""The cut of a layer covers every byte once, in order, whatever the numbers."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from layercast import _native

kinds = st.lists(st.integers(1, 5000), min_size=1, max_size=6)


@settings(max_examples=300, deadline=None)
@given(kinds, st.integers(1, 40), st.integers(1, 20_000), st.booleans())
def test_every_byte_lies_in_one_piece(kind_bytes: list[int], experts: int, piece_bytes: int, whole: bool) -> None:
    starts = [sum(kind_bytes[:k]) for k in range(len(kind_bytes))]
    share = sum(kind_bytes)
    if share * experts / piece_bytes > 5000:
        piece_bytes = share * experts // 5000 + 1
    at = 0
    for piece in _native.cut(kind_bytes, experts, piece_bytes, whole):
        inside = 0
        for expert, kind, offset, nbytes, piece_offset in piece:
            assert nbytes > 0
            assert piece_offset == inside
            assert expert * share + starts[kind] + offset == at
            at += nbytes
            inside += nbytes
        if whole:
            assert inside % share == 0
            assert inside <= max(piece_bytes, share)
        else:
            assert inside == min(piece_bytes, share * experts - (at - inside))
    assert at == share * experts


@settings(max_examples=300, deadline=None)
@given(kinds, st.integers(1, 5), st.integers(1, 20_000), st.integers(0, 63))
def test_halves_in_turns_cover_every_byte_once(
    kind_bytes: list[int], experts: int, piece_bytes: int, paired: int
) -> None:
    share = sum(kind_bytes)
    piece_bytes = max(piece_bytes, share * experts // 2000)
    seen = [np.zeros((experts, nbytes), np.uint8) for nbytes in kind_bytes]
    before = 0
    for piece in _native.cut(kind_bytes, experts, piece_bytes, False, paired):
        inside = 0
        for expert, kind, offset, nbytes, piece_offset in piece:
            assert nbytes > 0
            assert piece_offset == inside
            inside += nbytes
            seen[kind][expert, offset : offset + nbytes] += 1
        assert inside == min(piece_bytes, share * experts - before)
        before += inside
    assert before == share * experts
    for kind in seen:
        assert (kind == 1).all()


def test_a_piece_has_the_same_stretch_of_both_halves() -> None:
    pieces = _native.cut([800], 1, 200, False, 1)
    assert pieces == [
        [(0, 0, first, 50, 0), (0, 0, 400 + first, 50, 50), (0, 0, first + 50, 50, 100), (0, 0, 450 + first, 50, 150)]
        for first in range(0, 400, 100)
    ]
