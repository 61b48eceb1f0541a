"""The exception family: attributes, text, pickling across processes."""

from __future__ import annotations

import pickle

from layercast import errors


def test_attributes_survive_pickling() -> None:
    error = errors.PeerDied("rank 1 died", hint="restart it", rank=1, pid=42, epoch=7, layer=3, expert=9)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is errors.PeerDied
    assert (copy.code, copy.rank, copy.pid, copy.epoch, copy.layer, copy.expert) == (101, 1, 42, 7, 3, 9)
    assert str(copy) == "rank 1 died (restart it)"


def test_errors_with_own_arguments_survive_pickling() -> None:
    copy = pickle.loads(pickle.dumps(errors.CheckpointError("cut short", reason="truncated")))
    assert copy.reason == "truncated"
    assert isinstance(copy, ValueError)


def test_every_code_maps_into_the_family() -> None:
    assert all(issubclass(cls, errors.LayercastError) for cls in errors.BY_CODE.values())
