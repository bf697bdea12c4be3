#include "common/ckpt/crc32c.h"

#include <random>
#include <string>

#include <gtest/gtest.h>

namespace muster {
namespace {

// RFC 3720, appendix B.4, and the usual check value.
TEST(Crc32cTest, KnownValues) {
  EXPECT_EQ(Crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(Crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(Crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string ascending;
  for (int i = 0; i < 32; ++i) ascending.push_back(static_cast<char>(i));
  EXPECT_EQ(Crc32c(ascending), 0x46dd794eu);
  EXPECT_EQ(Crc32c(""), 0u);
}

TEST(Crc32cTest, PortableEqualsHardwareAndExtends) {
  std::mt19937 random(1);
  std::string bytes;
  for (int i = 0; i < 300; ++i) bytes.push_back(static_cast<char>(random()));
  for (size_t size = 0; size <= bytes.size(); ++size) {
    const std::string part = bytes.substr(0, size);
    EXPECT_EQ(Crc32c(part), Crc32cPortable(part)) << size;
    const size_t cut = size / 3;
    EXPECT_EQ(Crc32c(part.substr(cut), Crc32c(part.substr(0, cut))), Crc32c(part)) << size;
  }
}

}  // namespace
}  // namespace muster
