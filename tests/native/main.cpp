#include <cstring>

#include "check.h"

// The tests named, or all.
int main(int count, char** names) {
  struct Test {
    const char* name;
    void (*run)();
  };
  const Test tests[] = {{"pieces", test_pieces}, {"text", test_text},         {"litmus", test_litmus},
                        {"groups", test_groups}, {"failures", test_failures}, {"races", test_races}};
  int passed = 0;
  for (const Test& test : tests) {
    bool wanted = count < 2;
    for (int i = 1; i < count; ++i) wanted = wanted || std::strcmp(names[i], test.name) == 0;
    if (!wanted) continue;
    std::printf("%s ...\n", test.name);
    std::fflush(stdout);
    test.run();
    ++passed;
  }
  std::printf("%d passed, 0 failed\n", passed);
  return 0;
}
