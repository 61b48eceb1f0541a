#include <string>

#include "check.h"
#include "control.h"

using layercast::cut_utf8;

void test_text() {
  CHECK(cut_utf8("abc", 3) == "abc");
  CHECK(cut_utf8("abc", 2) == "ab");
  CHECK(cut_utf8("a\xc3\xa9", 2) == "a");  // e acute does not fit
  CHECK(cut_utf8("a\xc3\xa9", 3) == "a\xc3\xa9");
  CHECK(cut_utf8("\xf0\x9f\x98\x80", 3).empty());  // a four-byte character
  CHECK(cut_utf8("\xff\xc3", 9) == "??");          // no characters at all
  CHECK(cut_utf8("\xed\xa0\x80", 9) == "???");     // a surrogate
  CHECK(cut_utf8("\xc0\x80", 9) == "??");          // overlong
  CHECK(cut_utf8(std::string("a\0b", 3), 9) == "a?b");
}
