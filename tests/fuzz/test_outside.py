"""What comes from outside may be anything: no crash, no hang, a clear error."""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.support.rig import Rig

from layercast import Checkpoint, Group, _native, errors
from layercast import rendezvous as rv
from layercast.checkpoint import write_demo_checkpoint

EXAMPLES = int(os.environ.get("FUZZ_EXAMPLES", "100"))
often = settings(
    max_examples=EXAMPLES,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
KINDS = (64, 8)

#: Offsets in the whole region, its extension included, and what is put there.
changes = st.lists(
    st.tuples(
        st.integers(0, 8191),
        st.one_of(st.binary(min_size=1, max_size=16), st.integers(0, 2**64 - 1).map(lambda v: struct.pack("<Q", v))),
    ),
    min_size=1,
    max_size=6,
)


@often
@given(changes, st.sampled_from([2, 3]))
def test_any_control_block(edits: list[tuple[int, bytes]], version: int) -> None:
    rig = Rig(2, KINDS, 4, version=version, timeout_ms=30, join_timeout_ms=30)
    for offset, data in edits:
        at = offset % rig.control.nbytes
        rig.control.array[at : at + len(data)] = list(data[: rig.control.nbytes - at])
    transports = []
    for rank in range(2):
        try:
            transports.append(rig.open(rank))
        except errors.LayercastError:
            continue
    for transport in transports:
        try:
            transport.join(1, 0, 4)
            if len(transports) == 1:
                transport.wait(1)
        except errors.LayercastError:
            continue
    for transport in transports:
        transport.close()


@often
@given(changes)
def test_a_control_block_that_changes_under_way(edits: list[tuple[int, bytes]]) -> None:
    rig = Rig(2, KINDS, 4, timeout_ms=30, join_timeout_ms=30, piece_bytes=40).open_all()
    rig.load_checked(1, 0, 4, _native.pattern_writer(1))
    for offset, data in edits:
        at = offset % rig.control.nbytes
        rig.control.array[at : at + len(data)] = list(data[: rig.control.nbytes - at])
    for result in rig.load(2, 0, 4, _native.pattern_writer(2)):
        assert isinstance(result, dict | errors.LayercastError), result
    rig.close()


anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
fields = st.fixed_dictionaries(
    {},
    optional={
        "op": st.sampled_from(["hello", "share", "register", "unshare", "gather", "who", "forget", "goodbye", "x"]),
        "id": anything,
        "rank": st.integers(-2, 3) | anything,
        "tp": st.integers(0, 4) | anything,
        "pid": anything,
        "protocol": st.integers(0, 3) | anything,
        "tag": st.sampled_from(["a", "b"]) | anything,
        "asked": anything,
        "newer_than": anything,
        "generation": anything,
        "label": st.sampled_from(["a", "b"]) | anything,
        "value": anything,
        "about": anything,
        "fd": anything,
    },
)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Group, Path]]:
    folder = tmp_path_factory.mktemp("fuzz")
    folder.chmod(0o700)
    with Group("fuzz", 0, 3, runtime_dir=folder, timeout=20) as group, group.share("a", 4096):
        yield group, folder


@often
@given(st.lists(fields, min_size=1, max_size=6), st.binary(max_size=40))
def test_any_messages(served: tuple[Group, Path], messages: list[dict[str, object]], tail: bytes) -> None:
    group, folder = served
    hello = {"op": "hello", "id": 1, "protocol": 1, "rank": 1, "tp": 3, **vars(rv.Identity.own())}
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(20)
        stranger.connect(str(folder / "fuzz.layercast"))
        try:
            for message in [hello, *messages]:
                body = json.dumps(message).encode()
                stranger.sendall(struct.pack(">I", len(body)) + body)
            stranger.sendall(tail)
        except (BrokenPipeError, ConnectionResetError):
            pass
    # The group still serves.
    assert group.peers[0] == os.getpid()
    group.unshare("nothing")
    group.share("another", 64).close()
    assert not [t for t in threading.enumerate() if t.name == "layercast fuzz" and not t.is_alive()]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("fuzzed") / "model"
    write_demo_checkpoint(path, layers=1, experts=2, hidden=256, intermediate=256, vocab=32, shards=1)
    return path


def opens(path: Path) -> None:
    try:
        with Checkpoint.open(path) as found:
            found.describe()
            for layer in found.layers:
                found.blocks(layer, 1)
    except errors.LayercastError:
        pass


@often
@given(st.lists(st.tuples(st.integers(0, 4095), st.integers(0, 255)), min_size=1, max_size=4), st.integers(0, 9))
def test_any_safetensors_header(checkpoint: Path, edits: list[tuple[int, int]], cut: int) -> None:
    [file] = checkpoint.glob("*.safetensors")
    whole = file.read_bytes()
    data = bytearray(whole)
    header = 8 + struct.unpack_from("<Q", data)[0]
    for offset, value in edits:
        data[offset % header] = value
    try:
        file.write_bytes(bytes(data[: len(data) - cut]))
        opens(checkpoint)
    finally:
        file.write_bytes(whole)


@often
@given(
    st.dictionaries(
        st.sampled_from(
            [
                "model_type",
                "num_hidden_layers",
                "num_experts",
                "hidden_size",
                "moe_intermediate_size",
                "quantization_config",
                "decoder_sparse_step",
                "mlp_only_layers",
                "architectures",
            ]
        ),
        anything,
        min_size=1,
        max_size=4,
    )
)
def test_any_config(checkpoint: Path, changed: dict[str, object]) -> None:
    file = checkpoint / "config.json"
    whole = file.read_text()
    try:
        file.write_text(json.dumps({**json.loads(whole), **changed}))
        opens(checkpoint)
    finally:
        file.write_text(whole)
