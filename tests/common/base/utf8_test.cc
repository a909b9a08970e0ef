#include "common/base/utf8.h"

#include <gtest/gtest.h>

namespace espalier {
namespace {

TEST(AsUtf8, WellFormedTextIsKept) {
  for (const char* text : {"", "plain", "Bäume", "\xf0\x9f\x8c\xb3"}) {
    EXPECT_EQ(AsUtf8(text), text);
  }
}

TEST(AsUtf8, EveryOtherByteBecomesAQuestionMark) {
  EXPECT_EQ(AsUtf8("a\xff\xfe z"), "a?? z");
  EXPECT_EQ(AsUtf8("\xff"), "?");
  EXPECT_EQ(AsUtf8("cut \xc3"), "cut ?");
}

}  // namespace
}  // namespace espalier
