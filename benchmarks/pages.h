// Memory for the plain loops beside this file: large pages where the system has them, touched once.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <cstring>

inline char* huge_pages(std::size_t bytes) {
  void* at = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  madvise(at, bytes, MADV_HUGEPAGE);
  std::memset(at, 1, bytes);
  return static_cast<char*>(at);
}
