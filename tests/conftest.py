"""Fixtures that several folders share."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fake_cuda import FakeCuda, build


@pytest.fixture(scope="session")
def fake_cuda_library() -> Path:
    return build()


@pytest.fixture(scope="session")
def cuda_library(request: pytest.FixtureRequest) -> str:
    """The driver that device tests use: the fake one; with LAYERCAST_TEST_CUDA=real the machine's own."""
    if os.environ.get("LAYERCAST_TEST_CUDA") == "real":
        return ""
    return str(request.getfixturevalue("fake_cuda_library"))


@pytest.fixture
def cuda_rules(request: pytest.FixtureRequest, cuda_library: str) -> None:
    """On the fake driver: its rules were kept, and nothing is left."""
    if cuda_library:
        request.getfixturevalue("fake_cuda")


@pytest.fixture
def fake_cuda(fake_cuda_library: Path) -> Iterator[FakeCuda]:
    """The driver as at the start; afterwards every rule was kept and nothing is left."""
    fake = FakeCuda(fake_cuda_library)
    fake.reset()
    before = fake.alive
    yield fake
    gc.collect()  # tracebacks of expected exceptions hold devices
    violations, after = fake.violations, fake.alive
    fake.reset()
    assert violations == []
    assert after == before
