"""Shared memory: reserved, sealed, really gone after close; and how much of it there is."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

import numpy as np
import pytest

import layercast
from layercast.errors import ConfigError, ResourceError, StateError
from layercast.memory import SharedMemory, headroom

PAGE = os.sysconf("SC_PAGE_SIZE")
SOURCE = str(Path(layercast.__file__).parents[1])


def maps(label: str) -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if f"memfd:layercast:{label}" in line]


def open_fds() -> int:
    return len(os.listdir("/proc/self/fd"))


def run_python(code: str, *prefix: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*prefix, sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=30,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )


def test_two_mappings_see_the_same_bytes() -> None:
    with SharedMemory.create("pair", 3 * PAGE + 5) as first:
        assert first.address % PAGE == 0
        assert (len(first.view), first.view.readonly, first.view.format) == (3 * PAGE + 5, False, "B")
        assert not any(first.view)
        with SharedMemory.attach(os.dup(first.fd), 3 * PAGE + 5, "pair") as second:
            assert second.address != first.address
            first.view[3 * PAGE + 4] = 7
            assert second.view[3 * PAGE + 4] == 7
        assert first.view[3 * PAGE + 4] == 7


def test_descriptor_does_not_leak_into_started_programs() -> None:
    with SharedMemory.create("cloexec", PAGE) as memory:
        assert not os.get_inheritable(memory.fd)


def test_trap_27_reserved_and_sealed() -> None:
    nbytes = 4 << 20
    with SharedMemory.create("slots", nbytes) as memory:
        assert os.fstat(memory.fd).st_blocks * 512 >= nbytes
        for size in (0, nbytes - PAGE, nbytes + PAGE):
            with pytest.raises(PermissionError):
                os.ftruncate(memory.fd, size)


def test_case_01_small_dev_shm_does_not_matter() -> None:
    before = set(os.listdir("/dev/shm"))
    with SharedMemory.create("not-there", 1 << 20):
        assert not [name for name in set(os.listdir("/dev/shm")) - before if "not-there" in name]

    code = (
        "from layercast.memory import SharedMemory as S; m = S.create('x', 8 << 20); m.view[-1] = 3; print(m.view[-1])"
    )
    inner = f'mount -t tmpfs -o size=64k tmpfs /dev/shm && exec {sys.executable} -c "{code}"'
    if shutil.which("unshare") is None or run_python("", "unshare", "-rm").returncode != 0:
        pytest.skip("mount namespaces are not allowed here")
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", inner],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": SOURCE},
    )
    assert (done.returncode, done.stdout.strip(), done.stderr) == (0, "3", "")


def test_case_01_too_little_memory_names_wanted_available_and_limit() -> None:
    fds, wanted = open_fds(), 1 << 50
    with pytest.raises(ResourceError) as caught:
        SharedMemory.create("far too much", wanted)
    text = str(caught.value)
    assert f"{wanted:,} bytes" in text
    assert "'far too much'" in text
    assert "available: " in text
    assert "MemAvailable" in text or "cgroup" in text
    assert open_fds() == fds


def test_a_limit_met_while_reserving_is_a_resource_error_and_leaks_nothing() -> None:
    fds = open_fds()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, before[1]))
    try:
        with pytest.raises(ResourceError, match="2,097,152 bytes.*File too large.*available"):
            SharedMemory.create("limited", 2 << 20)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert open_fds() == fds
    assert not maps("limited")


@pytest.mark.parametrize("nbytes", [0, -1])
def test_nothing_is_not_shared(nbytes: int) -> None:
    with pytest.raises(ConfigError, match=f"not {nbytes}"):
        SharedMemory.create("nothing", nbytes)


def test_attach_refuses_another_size_and_names_both() -> None:
    with SharedMemory.create("sized", 8192) as memory:
        fds = open_fds()
        with pytest.raises(ConfigError, match=r"8,192 bytes, 4,096 were expected"):
            SharedMemory.attach(os.dup(memory.fd), 4096, "sized")
        assert open_fds() == fds


def test_attach_refuses_what_could_still_be_resized() -> None:
    fds = open_fds()
    unsealed = os.memfd_create("unsealed", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(unsealed, 4096)
    with pytest.raises(ConfigError, match=r"seals 0x0, 0x7 were expected.*F_SEAL_SHRINK"):
        SharedMemory.attach(unsealed, 4096, "unsealed")
    with tempfile.TemporaryFile() as ordinary:
        ordinary.truncate(4096)
        # A tmpfs file knows seals, but bears F_SEAL_SEAL alone; any other file knows none.
        with pytest.raises(ConfigError, match="ordinary file|F_SEAL_SHRINK"):
            SharedMemory.attach(os.dup(ordinary.fileno()), 4096, "ordinary")
    assert open_fds() == fds


def test_close_unmaps_although_an_array_still_looks() -> None:
    memory = SharedMemory.create("watched", 1 << 20)
    array = np.frombuffer(memory.view, dtype=np.uint8)
    assert maps("watched")
    memory.close()
    assert not maps("watched")
    assert len(array) == 1 << 20  # never to be read again, but alive
    memory.close()
    for attribute in ("view", "fd", "address"):
        with pytest.raises(StateError, match="'watched' is closed"):
            getattr(memory, attribute)


def test_forgotten_memory_is_unmapped() -> None:
    SharedMemory.create("forgotten", PAGE)
    assert not maps("forgotten")


def test_two_hundred_times_from_four_closing_threads_leaves_nothing() -> None:
    fds = open_fds()
    for _ in range(200):
        memory = SharedMemory.create("often", PAGE)
        threads = [threading.Thread(target=memory.close) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert open_fds() == fds
    assert not maps("often")


# Headroom, on a made-up machine of 100 GiB.

GIB = 1 << 30


def machine(root: Path, membership: str, mounts: str, files: dict[str, str]) -> Path:
    everything = {
        "proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {100 * GIB // 1024} kB\n",
        "proc/self/cgroup": membership,
        "proc/self/mountinfo": mounts,
        **files,
    }
    for name, text in everything.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


V2_MOUNT = "30 20 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"


def v2(where: str, limit: str, used: int, cache: int) -> dict[str, str]:
    return {
        f"sys/fs/cgroup/{where}/memory.max": f"{limit}\n",
        f"sys/fs/cgroup/{where}/memory.current": f"{used}\n",
        f"sys/fs/cgroup/{where}/memory.stat": f"anon 1\nactive_file {cache // 2}\ninactive_file {cache // 2}\n",
    }


def test_case_16_cgroup_of_2_gib_mostly_file_cache(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/job/step\n", V2_MOUNT, v2("job/step", str(2 * GIB), 2 * GIB - 4096, GIB))
    room = headroom(root)
    assert room.nbytes == GIB + 4096
    assert "job/step" in room.limit
    assert f"memory.max {2 * GIB}" in room.limit
    assert f"cache {GIB}" in room.limit


def test_an_outer_cgroup_may_be_the_tighter_one(tmp_path: Path) -> None:
    files = {**v2("job/step", str(8 * GIB), 0, 0), **v2("job", str(3 * GIB), GIB, 0)}
    room = headroom(machine(tmp_path, "0::/job/step\n", V2_MOUNT, files))
    assert (room.nbytes, "cgroup/job (" in room.limit) == (2 * GIB, True)


def test_a_cgroup_beyond_its_limit_has_nothing_left(tmp_path: Path) -> None:
    root = machine(tmp_path, "0::/job\n", V2_MOUNT, v2("job", str(GIB), 2 * GIB, 0))
    assert headroom(root).nbytes == 0


@pytest.mark.parametrize("membership", ["0::/job\n", "0::/\n", "0::/../..\n", ""])
def test_without_a_limit_the_host_decides(tmp_path: Path, membership: str) -> None:
    room = headroom(machine(tmp_path, membership, V2_MOUNT, v2("job", "max", 5, 0)))
    assert room.nbytes == 100 * GIB
    assert "MemAvailable" in room.limit


@pytest.mark.parametrize("top", ["/", "/docker/abc"])
def test_version_1_seen_from_the_host_and_from_a_container(tmp_path: Path, top: str) -> None:
    where = "sys/fs/cgroup/memory" + ("/docker/abc" if top == "/" else "")
    files = {
        f"{where}/memory.limit_in_bytes": f"{2 * GIB}\n",
        f"{where}/memory.usage_in_bytes": f"{2 * GIB}\n",
        f"{where}/memory.stat": f"inactive_file 1\ntotal_inactive_file {GIB}\ntotal_active_file 4096\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes" if top == "/" else "unused": "9223372036854771712\n",
    }
    mounts = f"31 20 0:27 {top} /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n{V2_MOUNT}"
    room = headroom(machine(tmp_path, "4:memory:/docker/abc\n1:cpu:/x\n0::/\n", mounts, files))
    assert room.nbytes == GIB + 4096
    assert "memory.limit_in_bytes" in room.limit


def test_an_error_shows_the_cgroup_and_both_figures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    root = machine(tmp_path, "0::/job\n", V2_MOUNT, v2("job", str(GIB), GIB // 2, 0))
    room = headroom(root)
    monkeypatch.setattr("layercast.memory.headroom", lambda: room)
    with pytest.raises(ResourceError, match=rf"{GIB:,} bytes.*{GIB // 2:,} bytes.*memory.max {GIB}"):
        SharedMemory.create("slots", GIB)
