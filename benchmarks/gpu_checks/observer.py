"""Sees a word of shared memory change, in a process of its own: `observer.py FD COUNT`.

The word takes the values 1 to COUNT in turn, by copies of the device; when each was seen, in monotonic nanoseconds, is
written behind it. Nobody in the measuring process can do that: who waits there may sleep, and Python runs one thread
at a time.
"""

from __future__ import annotations

import mmap
import os
import sys
import time

PAGE = 4096  # the word lies on the first one, the times on what follows; the time of 0 says that it looks
LOOKS = 1 << 20  # between two questions whether anybody still wants to know


def main(descriptor: int, count: int) -> None:
    memory = memoryview(mmap.mmap(descriptor, PAGE + (count + 1) * 8))
    word, seen = memory[:4].cast("I"), memory[PAGE:].cast("Q")
    parent = os.getppid()
    seen[0] = time.monotonic_ns()
    for value in range(1, count + 1):
        looks = 0
        while word[0] != value:
            looks += 1
            if looks % LOOKS == 0 and os.getppid() != parent:
                return
        seen[value] = time.monotonic_ns()


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
