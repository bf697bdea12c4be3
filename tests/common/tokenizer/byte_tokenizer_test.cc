#include "common/tokenizer/byte_tokenizer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

TEST(ByteTokenizerTest, BytesAreIds) {
  const ByteTokenizer tokenizer;
  EXPECT_THAT(tokenizer.Encode("a\xff\n"), ElementsAre(97, 255, 10));
  EXPECT_EQ(tokenizer.vocab_size(), 257);
  EXPECT_EQ(tokenizer.eod(), 256);
  EXPECT_FALSE(tokenizer.pad().has_value());
}

TEST(ByteTokenizerTest, EveryByteRoundTrips) {
  std::string text;
  for (int byte = 0; byte < 256; ++byte) text.push_back(static_cast<char>(byte));
  EXPECT_EQ(ByteTokenizer().Decode(ByteTokenizer().Encode(text)), text);
}

TEST(ByteTokenizerTest, IdsWithoutTextDecodeToNothing) {
  EXPECT_EQ(ByteTokenizer().Decode({72, 256, 105, 383, -1}), "Hi");
}

TEST(MakeTokenizerTest, UnknownTypesAreNamed) {
  EXPECT_EQ((*MakeTokenizer("byte", std::nullopt))->vocab_size(), 257);
  EXPECT_THAT(MakeTokenizer("words", std::nullopt).status().ToString(),
              HasSubstr("tokenizer_type=\"words\""));
  EXPECT_THAT(MakeTokenizer("byte", "x.json").status().ToString(), HasSubstr("x.json"));
}

}  // namespace
}  // namespace muster
