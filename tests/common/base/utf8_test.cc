#include "common/base/utf8.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(ValidUtf8Test, CharactersStayAndOtherBytesBecomeTheReplacementCharacter) {
  const std::string bad = "\xef\xbf\xbd";
  const struct {
    const char* name;
    std::string text, want;
  } rows[] = {
      {"empty", "", ""},
      {"ascii", "loss=1.5", "loss=1.5"},
      {"two, three and four bytes", "\u00e9\u20ac\U0001f600", "\u00e9\u20ac\U0001f600"},
      {"zero byte", std::string("a\0b", 3), std::string("a\0b", 3)},
      {"a continuation alone", "a\x80z", "a" + bad + "z"},
      {"cut off", "a\xe2\x82", "a" + bad + bad},
      {"overlong slash", "\xc0\xaf", bad + bad},
      {"overlong three", "\xe0\x80\xaf", bad + bad + bad},
      {"surrogate", "\xed\xa0\x80", bad + bad + bad},
      {"last code point", "\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
      {"above it", "\xf4\x90\x80\x80", bad + bad + bad + bad},
      {"no lead byte at all", "\xff\xfe", bad + bad},
      {"the next character survives", "\xc3\x28", bad + "("},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    EXPECT_EQ(ValidUtf8(row.text), row.want);
  }
}

TEST(Utf8PrefixTest, NoCharacterIsCutInTwo) {
  EXPECT_EQ(Utf8Prefix("abc", 3), "abc");
  EXPECT_EQ(Utf8Prefix("abc", 2), "ab");
  EXPECT_EQ(Utf8Prefix("a\u20acb", 4), "a\u20ac");
  EXPECT_EQ(Utf8Prefix("a\u20acb", 3), "a");
  EXPECT_EQ(Utf8Prefix("\u20ac", 1), "");
  EXPECT_EQ(Utf8Prefix("\x80\x80\x80", 2), "");
}

}  // namespace
}  // namespace muster
