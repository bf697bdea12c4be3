#include "common/base/sha1.h"

#include <string>

#include "absl/strings/escaping.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

std::string Hex(const std::string& text) {
  const Sha1Digest digest = Sha1(text);
  return absl::BytesToHexString(
      absl::string_view(reinterpret_cast<const char*>(digest.data()), digest.size()));
}

// The examples of FIPS 180 and its predecessors.
TEST(Sha1Test, PublishedDigests) {
  EXPECT_EQ(Hex(""), "da39a3ee5e6b4b0d3255bfef95601890afd80709");
  EXPECT_EQ(Hex("abc"), "a9993e364706816aba3e25717850c26c9cd0d89d");
  EXPECT_EQ(Hex("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq"),
            "84983e441c3bd26ebaae4aa1f95129e5e54670f1");
  EXPECT_EQ(Hex(std::string(1000000, 'a')), "34aa973cd4c4daa4f61eeb2bdbad27316534016f");
}

// Lengths around the block, where the padding takes a block of its own: checked with sha1sum.
TEST(Sha1Test, LengthsAroundTheBlock) {
  EXPECT_EQ(Hex(std::string(55, 'x')), "cef734ba81a024479e09eb5a75b6ddae62e6abf1");
  EXPECT_EQ(Hex(std::string(56, 'x')), "901305367c259952f4e7af8323f480d59f81335b");
  EXPECT_EQ(Hex(std::string(63, 'x')), "0ddc4e0cccd9a12850deb5abb0853a4425559fec");
  EXPECT_EQ(Hex(std::string(64, 'x')), "bb2fa3ee7afb9f54c6dfb5d021f14b1ffe40c163");
  EXPECT_EQ(Hex(std::string(119, 'x')), "4300320394f7ee239bcdce7d3b8bcee173a0cd5c");
  EXPECT_EQ(Hex(std::string(120, 'x')), "ceb2821639c4b6dcb10bce0e522ca2e608ce056d");
}

}  // namespace
}  // namespace muster
