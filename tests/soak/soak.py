"""Random faults for minutes: `make soak`. Three ranks load layers and check every byte; now and then one gives a layer
up, raises in its writer, kills itself or is stopped. Survivors recover, a new process takes a dead one's place.
Exit code 1 at a wrong byte, a hang or a failure that nobody ordered."""

from __future__ import annotations

import argparse
import collections
import contextlib
import logging
import os
import random
import signal
import sys
import tempfile
import threading
import time
import traceback
from pathlib import Path

import numpy as np

from layercast import Group, Transport, _native
from layercast.errors import Cancelled, GroupError, PeerClosed, PeerDied, WriterError
from layercast.writers import pattern_writer
from tests.support.processes import Child
from tests.support.rig import Region

TP = 3
KINDS = (20_000, 100)
EXPERTS = 8
HANG_S = 60.0


EVENTS = ("layers", "wrong experts", "cancelled", "writer raised", "failures heard", "recovered")


class DiedAtStart(Exception):
    """Rank 0 died before the group had begun, as far as a newcomer can know: whoever supervises it starts it again."""


class Tally:
    """What the processes of a rank have seen, in memory that outlives those that are killed."""

    def __init__(self) -> None:
        self._cells = Region(8 * len(EVENTS)).array.view(np.int64)

    def add(self, event: str, count: int = 1) -> None:
        self._cells[EVENTS.index(event)] += count

    def __getitem__(self, event: str) -> int:
        return int(self._cells[EVENTS.index(event)])


def rank_process(rank: int, folder: Path, end: float, seed: int, tally: Tally, rate: float) -> str:
    """Loads layers until the time is over. A rank that kills itself never returns."""
    logging.getLogger("layercast").setLevel(logging.CRITICAL)
    try:
        return _rank_process(rank, folder, end, random.Random(seed), tally, rate)
    except DiedAtStart:
        return "again"
    except Exception:  # noqa: BLE001 - it is the result
        return traceback.format_exc()


def _rank_process(rank: int, folder: Path, end: float, rng: random.Random, tally: Tally, rate: float) -> str:
    device = "link:0,latency=200us" if rank % 2 else "host"
    group = Group("soak", rank, TP, runtime_dir=folder, timeout=HANG_S)
    with open_transport(group, device) as transport:
        while True:
            try:
                if rank == 0 and time.monotonic() > end:
                    break  # the others see it closed
                one_layer(transport, rng, tally, rate)
            except PeerClosed:
                if time.monotonic() > end - 1:
                    break
                raise
            except GroupError:
                tally.add("failures heard")
                try:
                    transport.recover(timeout=HANG_S / 3)
                except GroupError:
                    if time.monotonic() > end:  # rank 0 has ended for good
                        break
                    raise
                tally.add("recovered")
    return "ended"


def open_transport(group: Group, device: str) -> Transport:
    try:
        return Transport(
            group,
            KINDS,
            num_experts=EXPERTS,
            device=device,
            piece_bytes=7000,
            slots=3,
            writer_threads=2,
            verify="sample",
            timeout=HANG_S,
            join_timeout=HANG_S,
        )
    except PeerDied as error:
        if group.replaces:
            raise
        raise DiedAtStart from error


def give_up(transport: Transport, epoch: int) -> None:
    with contextlib.suppress(GroupError):  # something else was first
        transport.cancel(epoch)


def one_layer(transport: Transport, rng: random.Random, tally: Tally, rate: float) -> None:
    epoch = transport.last_epoch_joined + 1
    fate = rng.random() / rate
    thread = None
    if fate < 0.03:  # gives it up at some moment
        thread = threading.Timer(rng.random() * 0.002, give_up, (transport, epoch))
        thread.start()
    elif fate < 0.035:
        threading.Timer(rng.random() * 0.003, lambda: os.kill(os.getpid(), signal.SIGKILL)).start()
    elif fate < 0.04:
        os.kill(os.getpid(), signal.SIGSTOP)
    experts = list(range(EXPERTS)) if epoch % 3 else [epoch % EXPERTS, (epoch + 3) % EXPERTS]
    broken = transport.rank == 0 and 0.04 < fate < 0.05
    writer = (lambda expert, views: 1 // (experts[-1] - expert)) if broken else pattern_writer(epoch)
    try:
        transport.load(epoch, 1, experts, writer)
    except Cancelled:
        tally.add("cancelled")
        return
    except WriterError:
        tally.add("writer raised")
        raise
    finally:
        if thread is not None:
            thread.cancel()
            thread.join()
    tally.add("layers")
    if epoch % 3:  # a layer of few experts leaves the others' places as they were
        wrong, _ = _native.count_wrong_pattern(epoch, 1, transport.rank, EXPERTS, list(KINDS), transport.destinations)
        tally.add("wrong experts", wrong)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--rate", type=float, default=1.0, help="faults, as a multiple of the usual")
    parser.add_argument("--seed", type=int, default=int(time.time()))
    arguments = parser.parse_args()
    rng = random.Random(arguments.seed)
    end = time.monotonic() + arguments.seconds
    total: collections.Counter[str] = collections.Counter()
    tallies = [Tally() for _ in range(TP)]
    print(f"seed {arguments.seed}, {arguments.seconds:.0f} s", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def start(rank: int) -> Child:
            seed = rng.randrange(2**32)
            return Child(lambda: rank_process(rank, folder, end, seed, tallies[rank], arguments.rate))

        ranks = [start(rank) for rank in range(TP)]
        stopped: dict[int, float] = {}
        done: set[int] = set()
        while len(done) < TP:
            time.sleep(0.005)
            if time.monotonic() > end + HANG_S:
                print(f"ranks {sorted({0, 1, 2} - done)} hang", flush=True)
                for rank in {0, 1, 2} - done:
                    ranks[rank].kill()
                return 1
            for rank, child in enumerate(ranks):
                if rank in done:
                    continue
                pid, status = os.waitpid(child.pid, os.WNOHANG)
                if pid == 0:
                    if child.state() == "T" and stopped.setdefault(rank, time.monotonic()) < time.monotonic() - 0.05:
                        total["stopped"] += 1
                        del stopped[rank]
                        child.signal(signal.SIGCONT)
                    continue
                child.status = status
                stopped.pop(rank, None)
                if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL:
                    total["killed"] += 1
                    os.close(child.reader)
                    if time.monotonic() > end:  # rank 0 may be gone: a newcomer would wait for another one
                        done.add(rank)
                        continue
                    ranks[rank] = start(rank)
                    continue
                result = child.result(5)
                if result == "again":
                    total["started again"] += 1
                    ranks[rank] = start(rank)
                    continue
                if result != "ended":
                    print(f"rank {rank} ended with {result}", flush=True)
                    for other in ranks:
                        if other.status is None:
                            other.kill()
                    return 1
                done.add(rank)
    for event in EVENTS:
        total[event] = sum(tally[event] for tally in tallies)
    print(", ".join(f"{what} {count}" for what, count in sorted(total.items())))
    return 1 if total["wrong experts"] else 0


if __name__ == "__main__":
    sys.exit(main())
