#include "common/spec/json_tree.h"

#include <random>

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"
#include "spec_fixture.h"

namespace muster {
namespace {

TEST(JsonTreeTest, KeepsOrderRepeatedKeysAndDigits) {
  const JsonDocument document = ParseJson(R"({"b": 1.50, "a": [true, null], "b": "x"})");
  ASSERT_EQ(document.error, "");
  EXPECT_EQ(ShortJson(document.root), R"({"b": 1.50, "a": [true, null], "b": "x"})");
}

TEST(JsonTreeTest, ANumberThatDoubleCannotHoldLeavesTheRestReadable) {
  const JsonDocument document = ParseJson(R"({"a": 1e400, "b": [NaN, -Infinity, 2], "c": -1e999})");
  ASSERT_EQ(document.error, "");
  EXPECT_EQ(document.root.Find("a")->kind, JsonNode::Kind::kBadNumber);
  EXPECT_EQ(document.root.Find("a")->text, "1e400");
  EXPECT_EQ(document.root.Find("b")->items[0].text, "NaN");
  EXPECT_EQ(document.root.Find("b")->items[1].text, "-Infinity");
  EXPECT_EQ(document.root.Find("b")->items[2].integer, 2);
  EXPECT_EQ(document.root.Find("c")->text, "-1e999");
}

TEST(JsonTreeTest, WholeNumbersAreExact) {
  const JsonDocument document =
      ParseJson("[9223372036854775807, -9223372036854775808, 9223372036854775808, 1e6, 4.0, 0.5]");
  ASSERT_EQ(document.error, "");
  const std::vector<JsonNode>& items = document.root.items;
  EXPECT_EQ(items[0].integer, INT64_MAX);
  EXPECT_EQ(items[1].integer, INT64_MIN);
  EXPECT_FALSE(items[2].is_integer);
  EXPECT_EQ(items[3].integer, 1000000);
  EXPECT_EQ(items[4].integer, 4);
  EXPECT_FALSE(items[5].is_integer);
}

TEST(JsonTreeTest, NumbersComeBackBitForBit) {
  std::mt19937_64 random(7);
  for (int i = 0; i < 1000; ++i) {
    const double value =
        std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 200) - 150);
    const JsonDocument document = ParseJson(WriteJson(JsonNode::Number(value)));
    ASSERT_EQ(document.error, "");
    EXPECT_EQ(document.root.number, value);
  }
}

// Broken documents of every kind: never a throw or a crash, and the same verdict as nlohmann's.
TEST(JsonTreeTest, MutatedDocumentsAreJudgedAsNlohmannJudgesThem) {
  std::mt19937 random(2024);
  const std::string good = GoodSpec();
  const std::string alphabet = "{}[]\",:0123456789.eE+-tfn \\u\xC3\xA9\xFF\n";
  for (int i = 0; i < 3000; ++i) {
    std::string text = good;
    for (int edits = 1 + static_cast<int>(random() % 3); edits > 0; --edits) {
      const size_t at = random() % text.size();
      switch (random() % 3) {
        case 0:
          text[at] = alphabet[random() % alphabet.size()];
          break;
        case 1:
          text.insert(at, 1, alphabet[random() % alphabet.size()]);
          break;
        default:
          text.erase(at, 1 + random() % 5);
      }
    }
    const bool valid = nlohmann::json::accept(text);
    const JsonDocument document = ParseJson(text);
    // A number beyond double is no error of the tree; nlohmann refuses it.
    if (valid) {
      EXPECT_EQ(document.error, "") << text;
    }
    if (document.error.empty() && !valid) {
      EXPECT_NE(WriteJson(document.root).find_first_of("eE"), std::string::npos) << text;
    }
    ParseJobSpec(text);
  }
}

}  // namespace
}  // namespace muster
