"""An independent version-2 rank, written from the table alone: polls, knows no extension, copies with memmove."""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable

POISON, CODE, ERROR_RANK, MESSAGE = 64, 128, 192, 256
EPOCH, LAYER, COUNT, SEQUENCE, DONE = 512, 576, 640, 704, 768
JOIN, CONSUMED, RETURNED, READY, ACK, BYTES = 832, 1344, 1856, 2368, 2752, 4544


class ForeignRank:
    """`slots[slot][kind]`, `destinations[kind]`: addresses; `sizes[kind]`: bytes; `all_slots` on rank 0 only."""

    def __init__(self, region, rank, tp, slots, destinations, sizes, all_slots=None):
        assert struct.unpack_from("<QQQQ", region, 0) == (0x4B544650384C5731, 2, 5056, tp)
        self.region, self.rank, self.tp = region, rank, tp
        self.slots, self.destinations, self.sizes, self.all_slots = slots, destinations, sizes, all_slots
        self.taken = [self.get(READY + 192 * s) for s in range(2)]
        self.published = list(self.taken)

    def get(self, offset):
        return struct.unpack_from("<Q", self.region, offset)[0]

    def set(self, offset, value):
        struct.pack_into("<Q", self.region, offset, value)

    def until(self, ready: Callable[[], bool]):
        deadline = time.monotonic() + 20
        while not ready():
            if self.get(POISON):
                raise RuntimeError(self.region[MESSAGE : MESSAGE + 256].split(b"\0")[0].decode())
            assert time.monotonic() < deadline, "the foreign rank waited too long"
            time.sleep(0.0001)

    def load(self, epoch, layer, count, write=None):
        """A whole layer; rank 0 writes expert by expert through `write(expert, [slot addresses per rank])`."""
        if self.rank == 0:
            self.until(lambda: all(self.get(RETURNED + 64 * r) >= self.get(EPOCH) for r in range(self.tp)))
            self.set(LAYER, layer)
            self.set(COUNT, count)
            self.set(EPOCH, epoch)
        else:
            self.until(lambda: self.get(EPOCH) == epoch)
            assert (self.get(LAYER), self.get(COUNT)) == (layer, count)
        self.set(JOIN + 64 * self.rank, epoch)
        for expert in range(count):
            if self.rank == 0:
                self.publish(epoch, expert, write)
            self.consume(epoch, expert)
        self.set(BYTES + 64 * self.rank, count * sum(self.sizes))
        self.set(CONSUMED + 64 * self.rank, epoch)
        if self.rank == 0:
            self.until(lambda: all(self.free(s) for s in range(2)))
            self.set(DONE, epoch)
        self.until(lambda: self.get(DONE) >= epoch)
        self.set(RETURNED + 64 * self.rank, epoch)

    def free(self, slot):
        return all(self.get(ACK + 128 * r + 64 * slot) >= self.published[slot] for r in range(self.tp))

    def publish(self, epoch, expert, write):
        slot = expert % 2
        self.until(lambda: self.free(slot))
        write(expert, [self.all_slots[slot][r] for r in range(self.tp)])
        self.set(READY + 192 * slot + 64, epoch)
        self.set(READY + 192 * slot + 128, expert)
        self.published[slot] = self.get(SEQUENCE) + 1
        self.set(SEQUENCE, self.published[slot])
        self.set(READY + 192 * slot, self.published[slot])

    def consume(self, epoch, expert):
        slot = expert % 2
        at = READY + 192 * slot
        self.until(lambda: self.get(at) != self.taken[slot] and self.get(at + 64) == epoch)
        assert self.get(at + 128) == expert
        self.taken[slot] = self.get(at)
        for kind, size in enumerate(self.sizes):
            ctypes.memmove(self.destinations[kind] + expert * size, self.slots[slot][kind], size)
        self.set(ACK + 128 * self.rank + 64 * slot, self.taken[slot])
