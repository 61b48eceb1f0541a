"""The compiled module's type stub is generated; this holds the committed one against a fresh one."""

from __future__ import annotations

import argparse
import difflib
import subprocess
import sys
import tempfile
from pathlib import Path

STUB = Path(__file__).parents[1] / "src" / "layercast" / "_native.pyi"


def generate() -> str:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "_native.pyi"
        command = [sys.executable, "-m", "nanobind.stubgen", "-q", "-m", "layercast._native", "-o", str(out)]
        subprocess.run(command, check=True)
        return out.read_text()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the stub anew")
    fresh = generate()
    if parser.parse_args().write:
        STUB.write_text(fresh)
        return 0
    committed = STUB.read_text() if STUB.exists() else ""
    if committed == fresh:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(committed.splitlines(True), fresh.splitlines(True), "committed", "generated")
    )
    print("src/layercast/_native.pyi differs from the compiled module: run `make stubs`", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
