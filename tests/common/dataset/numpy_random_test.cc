#include "common/dataset/numpy_random.h"

#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/dataset/mock_documents.h"

namespace muster {
namespace {

using ::testing::ElementsAre;

TEST(NumpyRandomStateTest, FirstWordsOfSeed1234) {
  NumpyRandomState random(1234);
  EXPECT_EQ(random.NextUint32(), 822569775u);
  EXPECT_EQ(random.NextUint32(), 2137449171u);
  EXPECT_EQ(random.NextUint32(), 2671936806u);
  EXPECT_EQ(random.NextUint32(), 3512589365u);
  EXPECT_EQ(random.NextUint32(), 1880026316u);
}

// The standard's own check value: the 10,000th word of seed 5489.
TEST(NumpyRandomStateTest, TenThousandthWordOfTheDefaultSeed) {
  NumpyRandomState random(5489);
  for (int i = 0; i < 9999; ++i) random.NextUint32();
  EXPECT_EQ(random.NextUint32(), 4123659995u);
}

TEST(NumpyRandomStateTest, ShuffleOfTen) {
  std::vector<int> values(10);
  std::iota(values.begin(), values.end(), 0);
  NumpyRandomState(1234).Shuffle(values.data(), 10);
  EXPECT_THAT(values, ElementsAre(7, 2, 9, 1, 0, 8, 4, 5, 6, 3));
}

TEST(MockDocumentsTest, LengthsAreNumpys) {
  const MockDocuments documents(257);
  std::vector<int64_t> first;
  int64_t sum = 0;
  for (int64_t d = 0; d < documents.num_sequences(); ++d) {
    if (d < 10) first.push_back(documents.sequence_length(d));
    sum += documents.sequence_length(d);
  }
  EXPECT_THAT(first, ElementsAre(3484, 2609, 2094, 1105, 1261, 168, 309, 68, 718, 3331));
  EXPECT_EQ(sum, 204'637'097);
}

TEST(MockDocumentsTest, TokensCountUpAndEndWithEod) {
  const MockDocuments documents(50);
  int64_t tokens[68];  // document 7 has 68
  documents.Read(7, 0, 68, tokens);
  EXPECT_EQ(tokens[0], 1);
  EXPECT_EQ(tokens[48], 49);
  EXPECT_EQ(tokens[49], 0);
  EXPECT_EQ(tokens[66], 17);
  EXPECT_EQ(tokens[67], 49);
  int64_t tail[2];
  documents.Read(7, 66, 2, tail);
  EXPECT_THAT(tail, ElementsAre(17, 49));
}

}  // namespace
}  // namespace muster
