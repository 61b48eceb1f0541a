#include "check.h"

int main() {
  struct Test {
    const char* name;
    void (*run)();
  };
  const Test tests[] = {{"pieces", test_pieces},
                        {"text", test_text},
                        {"litmus", test_litmus},
                        {"groups", test_groups},
                        {"failures", test_failures}};
  int passed = 0;
  for (const Test& test : tests) {
    std::printf("%s ...\n", test.name);
    std::fflush(stdout);
    test.run();
    ++passed;
  }
  std::printf("%d passed, 0 failed\n", passed);
  return 0;
}
