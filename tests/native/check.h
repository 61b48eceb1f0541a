// A test is a function that calls CHECK; main() runs them all and counts.
#pragma once

#include <cstdio>
#include <cstdlib>

#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition)) {                                                             \
      std::fprintf(stderr, "%s:%d: expected %s\n", __FILE__, __LINE__, #condition); \
      std::abort();                                                                 \
    }                                                                               \
  } while (false)

void test_groups();
void test_failures();
void test_races();
void test_litmus();
void test_pieces();
void test_text();
