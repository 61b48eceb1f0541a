"""Our table of the driver's functions, held against the header where one is installed."""

from __future__ import annotations

import ctypes
import importlib
import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "native" / "devices" / "cuda_functions.h"
PAGE = ROOT / "docs" / "reference" / "cuda.md"


def header() -> Path | None:
    places = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    places += sorted(Path("/usr/local").glob("cuda*/include"), reverse=True)
    places += [Path("/usr/include"), *sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/include"))]
    return next((place for place in places if (place / "cuda.h").is_file()), None)


def compile_check(include: Path, table: Path, source: Path | None = None) -> subprocess.CompletedProcess[str]:
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{table.parents[1]}", f"-I{include}"]
    source = source or Path(__file__).with_name("signatures.cpp")
    return subprocess.run([*command, str(source)], capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def include() -> Path:
    found = header()
    if found is None:
        pytest.skip("no cuda.h on this machine: the driver's signatures cannot be held against it")
    return found


def test_every_function_and_constant_is_as_in_the_header(include: Path) -> None:
    done = compile_check(include, TABLE)
    assert done.returncode == 0, done.stderr[:2000]


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ("X(cuEventQuery, (::layercast::cuda::Event event))", "X(cuEventQuery, (::layercast::cuda::Stream event))"),
        ("(void* address, std::size_t bytes, unsigned flags)", "(void* address, unsigned bytes, unsigned flags)"),
        ("kPointerRangeSize = 12", "kPointerRangeSize = 13"),
    ],
)
def test_a_wrong_one_is_found(include: Path, tmp_path: Path, right: str, wrong: str) -> None:
    text = TABLE.read_text()
    assert right in text
    table = tmp_path / "native" / "devices" / TABLE.name
    table.parent.mkdir(parents=True)
    table.write_text(text.replace(right, wrong))
    assert compile_check(include, table).returncode != 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("gpu_checks.driver")


def as_checks(driver: ModuleType) -> str:
    """A program that compiles where the header says what the measurements' table says."""
    copy_2d = ctypes.POINTER(driver.Copy2D)
    names: dict[Any, str] = {
        ctypes.c_int: "int", ctypes.c_uint: "unsigned", ctypes.c_size_t: "std::size_t", ctypes.c_void_p: "void*",
        ctypes.c_char_p: "const char*", driver.Result: "CUresult", driver.Address: "CUdeviceptr",
        driver.Context: "CUcontext", driver.Stream: "CUstream", driver.Event: "CUevent", driver.Bytes: "const void*",
        driver.HostFunction: "CUhostFn", copy_2d: "const CUDA_MEMCPY2D*",
    }  # fmt: skip

    def name(kind: Any) -> str:
        return names[kind] if kind in names else f"{name(kind._type_)}*"

    lines = ["#include <cuda.h>", "#include <cstddef>", "#include <type_traits>"]
    for function, kinds in driver.SIGNATURES.items():
        ours = f"CUresult (*)({', '.join(map(name, kinds))})"
        lines.append(f'static_assert(std::is_same_v<decltype(&::{function}), {ours}>, "{function}");')
    for constant, value in driver.Constant.__members__.items():
        lines.append(f'static_assert(static_cast<long>({constant}) == {int(value)}, "{constant}");')
    lines.append(f"static_assert(sizeof(CUDA_MEMCPY2D) == {ctypes.sizeof(driver.Copy2D)});")
    for field, *_ in driver.Copy2D._fields_:
        there = getattr(driver.Copy2D, field)
        lines.append(
            f"static_assert(offsetof(CUDA_MEMCPY2D, {field}) == {there.offset}"
            f' && sizeof(CUDA_MEMCPY2D::{field}) == {there.size}, "{field}");'
        )
    return "\n".join(lines) + "\n"


def test_the_measurements_call_the_driver_as_the_header_says(include: Path, driver: ModuleType, tmp_path: Path) -> None:
    source = tmp_path / "measured.cpp"
    source.write_text(as_checks(driver))
    done = compile_check(include, TABLE, source)
    assert done.returncode == 0, done.stderr[:2000]
    for right, wrong in (
        ("cuEventQuery), CUresult (*)(CUevent)", "cuEventQuery), CUresult (*)(CUstream)"),
        ("(CU_EVENT_DISABLE_TIMING) == 2", "(CU_EVENT_DISABLE_TIMING) == 1"),
        ("CUDA_MEMCPY2D, dstPitch) == 104", "CUDA_MEMCPY2D, dstPitch) == 96"),
    ):
        assert right in source.read_text()
        source.write_text(as_checks(driver).replace(right, wrong))
        assert compile_check(include, TABLE, source).returncode != 0, wrong


def test_the_page_lists_what_is_used() -> None:
    used = re.findall(r"\bX\((cu\w+),", TABLE.read_text())
    assert used and re.findall(r"^\| `(cu\w+)` \|", PAGE.read_text(), re.MULTILINE) == used
