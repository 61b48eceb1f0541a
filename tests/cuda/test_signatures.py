"""Our table of the driver's functions, held against the header where one is installed."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TABLE = ROOT / "native" / "devices" / "cuda_functions.h"
PAGE = ROOT / "docs" / "reference" / "cuda.md"


def header() -> Path | None:
    places = [Path(os.environ[name]) / "include" for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    places += sorted(Path("/usr/local").glob("cuda*/include"), reverse=True)
    places += [Path("/usr/include"), *sorted(Path(sysconfig.get_path("purelib")).glob("nvidia/*/include"))]
    return next((place for place in places if (place / "cuda.h").is_file()), None)


def compile_check(include: Path, table: Path) -> subprocess.CompletedProcess[str]:
    compiler = os.environ.get("CXX") or shutil.which("c++") or "g++"
    command = [compiler, "-std=c++20", "-fsyntax-only", f"-I{table.parents[1]}", f"-I{include}"]
    return subprocess.run(
        [*command, str(Path(__file__).with_name("signatures.cpp"))], capture_output=True, text=True, timeout=100
    )


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


def test_the_page_lists_what_is_used() -> None:
    used = re.findall(r"\bX\((cu\w+),", TABLE.read_text())
    assert used and re.findall(r"^\| `(cu\w+)` \|", PAGE.read_text(), re.MULTILINE) == used
