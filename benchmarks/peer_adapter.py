"""The drop-in module as a backend of the comparison harness (`bench.py --backend benchmarks/peer_adapter.py:Backend`).

The harness sets its stub device through STUB_MODE, STUB_GBPS and STUB_COPY; SYNC is the host device, ASYNC a link.
"""

from __future__ import annotations

import ctypes
import os
import time

from layercast import _native, kt


class Backend:
    name = "layercast"
    CONTROL_BYTES = kt.FP8_LAYERWISE_CONTROL_BYTES
    SLOTS = 2

    @staticmethod
    def init_control(addr, size, tp):
        kt.initialize_fp8_layerwise_control(addr, size, tp)

    @staticmethod
    def device():
        if os.environ.get("STUB_MODE", "SYNC") == "SYNC":
            return _native.host_device()
        gbps = float(os.environ.get("STUB_GBPS", "0"))
        return _native.link_device(gbps * 1e9, move=os.environ.get("STUB_COPY", "1") == "1")

    def __init__(
        self,
        rank,
        tp,
        control_addr,
        control_size,
        local_host,
        local_gpu,
        all_host,
        sizes,
        num_experts,
        timeout_ms,
    ):
        self.t = kt.FP8LayerwiseTransport(
            control_addr, control_size, rank, tp, -1, local_host, local_gpu, all_host, sizes, num_experts, timeout_ms,
            device=self.device(),
        )  # fmt: skip
        self.sources = {}

    def join(self, e, l, n):
        self.t.join(e, l, n)

    def wait(self, e):
        return self.t.wait(e)

    def close(self):
        self.t.close()

    def run_native(self, e, l, n, src, src_experts, sizes, sleep_us=0, throw_at=-1, what=""):
        if sleep_us or throw_at >= 0:
            return self.run_py(e, l, n, self.faulty(src, src_experts, sizes, sleep_us, throw_at, what))
        key = (src, src_experts)
        if key not in self.sources:
            nbytes = src_experts * self.t.tp_size * sum(sizes)
            self.sources[key] = _native.memory_writer(src, nbytes, src_experts, list(sizes), self.t.tp_size, None)
        self.t.run_producer(e, l, n, self.sources[key])
        return None

    def run_py(self, e, l, n, fn):
        self.t.run_producer(e, l, n, fn)

    def faulty(self, src, src_experts, sizes, sleep_us, throw_at, what):
        share = sum(sizes)

        def writer(expert, *kinds):
            if expert == throw_at:
                raise RuntimeError(what or "told to fail")
            if sleep_us:
                time.sleep(sleep_us / 1e6)
            for rank in range(self.t.tp_size):
                at = src + ((expert % src_experts) * self.t.tp_size + rank) * share
                for addresses, size in zip(kinds, sizes, strict=True):
                    ctypes.memmove(addresses[rank], at, size)
                    at += size

        return writer
