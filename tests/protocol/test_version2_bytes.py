"""Version 2 is a contract with other implementations: these bytes, read raw."""

from __future__ import annotations

import struct

import pytest
from tests.support.rig import Region, Rig

from layercast import _native, errors, kt


def u64(region: Region, offset: int) -> int:
    return struct.unpack_from("<Q", region.map, offset)[0]


def test_a_fresh_region() -> None:
    region = Region(8192)
    region.map[:] = b"\xaa" * 8192
    kt.initialize_fp8_layerwise_control(region.address, 8192, 4)
    assert kt.FP8_LAYERWISE_CONTROL_BYTES == 8192
    assert kt.FP8_LAYERWISE_MAX_TP_SIZE == 8
    assert region.map[:8] == b"1WL8PFTK"
    assert struct.unpack_from("<QQQQ", region.map, 0) == (0x4B544650384C5731, 2, 5056, 4)
    assert region.map[32:64] == bytes(32)
    assert struct.unpack_from("<q", region.map, 192) == (-1,)
    rest = bytearray(region.map[64:5056])
    rest[192 - 64 : 200 - 64] = bytes(8)
    assert rest == bytes(len(rest))


def test_every_cell_after_two_layers() -> None:
    """tp 2, 3 experts, epochs 1 and 5: each cell of the table at its offset."""
    with Rig(2, (64, 4, 32, 4), 3, version=2) as rig:
        rig.load_checked(1, 7, 3, _native.pattern_writer(1))
        rig.load_checked(5, 9, 3, _native.pattern_writer(1))
        at = {
            "poison_state": (64, 0),
            "error_code": (128, 0),
            "active_epoch": (512, 5),
            "layer_id": (576, 9),
            "expert_count": (640, 3),
            "next_sequence": (704, 6),
            "producer_done_epoch": (768, 5),
            "join_epoch[0]": (832, 5),
            "join_epoch[1]": (896, 5),
            "join_epoch[2]": (960, 0),
            "consumer_done_epoch[1]": (1344 + 64, 5),
            "wait_returned_epoch[1]": (1856 + 64, 5),
            "ready[0].sequence": (2368, 6),
            "ready[0].epoch": (2432, 5),
            "ready[0].expert_id": (2496, 2),
            "ready[1].sequence": (2560, 5),
            "ready[1].epoch": (2624, 5),
            "ready[1].expert_id": (2688, 1),
            "ack[0][0]": (2752, 6),
            "ack[0][1]": (2816, 5),
            "ack[1][0]": (2880, 6),
            "ack[1][1]": (2944, 5),
            "bytes[0]": (4544, 3 * 104),
            "bytes[1]": (4544 + 64, 3 * 104),
        }
        seen = {name: (offset, u64(rig.control, offset)) for name, (offset, _) in at.items()}
        assert seen == at
        for name, offset in {"start": 3776, "writer": 3840, "total": 3968, "h2d": 4032}.items():
            assert u64(rig.control, offset) > 0, name


def test_a_poisoned_region() -> None:
    with Rig(2, (64, 4, 32, 4), 3, version=2) as rig:

        def writer(expert: int, *addresses: list[int]) -> None:
            raise ValueError("no such file")

        rig.load(1, 7, 3, _native.PythonWriter.addresses(writer))
        assert u64(rig.control, 64) == 1
        assert u64(rig.control, 128) == 5
        assert struct.unpack_from("<q", rig.control.map, 192) == (0,)
        text = rig.control.map[256:512].split(b"\0")[0].decode()
        assert "no such file" in text and "expert 0" in text and "layer 7" in text


def test_version_3_says_so_in_its_header() -> None:
    with Rig(3, (64,), 3, slots=5) as rig:
        magic, version, total, tp, ranks, slots = struct.unpack_from("<QQQQQQ", rig.control.map, 0)
        assert (magic, version, tp, ranks, slots) == (0x4B544650384C5731, 3, 3, 3, 5)
        # 1 header, 7 + 5 single cells, 3 per rank, 3 per slot, ranks x slots, 4 + 2 per rank
        assert total == 64 * (1 + 7 + 5 + 3 * 3 + 3 * 5 + 15 + 4 + 2 * 3)


@pytest.mark.parametrize(
    ("offset", "value", "words"),
    [
        (0, 0, "nobody has initialised"),
        (0, 5, "magic is 5"),
        (8, 9, "version is 9"),
        (16, 5000, "struct_bytes is 5000, this rank expects 5056"),
        (24, 4, "tp_size is 4, this rank expects 2"),
    ],
)
def test_a_foreign_header_is_refused_with_both_values(offset: int, value: int, words: str) -> None:
    rig = Rig(2, (64, 4, 32, 4), 3, version=2)
    struct.pack_into("<Q", rig.control.map, offset, value)
    with pytest.raises(errors.ProtocolError, match=words):
        rig.open(0)


@pytest.mark.parametrize(
    ("size", "shift", "words"),
    [(8191, 0, "at least 8192 bytes, got 8191"), (8192, 8, "64-byte boundary, got one that is 8 past it")],
)
def test_a_bad_region_is_refused(size: int, shift: int, words: str) -> None:
    region = Region(16384)
    with pytest.raises(errors.ConfigError, match=words):
        kt.initialize_fp8_layerwise_control(region.address + shift, size, 2)
    with pytest.raises(errors.ConfigError, match="null pointer"):
        kt.initialize_fp8_layerwise_control(0, 8192, 2)
    for tp in (0, 9):
        with pytest.raises(errors.ConfigError, match=rf"tp_size: expected 1..8, got {tp}"):
            kt.initialize_fp8_layerwise_control(region.address, 8192, tp)
