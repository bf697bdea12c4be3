#include "common/rpc/address.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

TEST(AddressTest, HostAndPortComeBack) {
  for (const char* text : {"127.0.0.1:7700", "[::1]:0", "node-3.lan:65535"}) {
    const auto parsed = ParseHostPort(text);
    ASSERT_TRUE(parsed.ok()) << parsed.status();
    EXPECT_EQ(parsed->ToString(), text);
  }
}

TEST(AddressTest, FaultsAreNamed) {
  const struct {
    const char* text;
    const char* why;
  } rows[] = {
      {"127.0.0.1", "port is missing"}, {":7700", "host is missing"},
      {"a:65536", "0 to 65535"},        {"a:x", "0 to 65535"},
      {"::1:7700", "needs brackets"},   {"[::1:7700", "bracket is not closed"},
  };
  for (const auto& row : rows) {
    EXPECT_THAT(std::string(ParseHostPort(row.text).status().message()),
                testing::AllOf(testing::HasSubstr(row.text), testing::HasSubstr(row.why)));
  }
}

TEST(AddressTest, OnlyThisMachinesOwnAddressesAreLoopback) {
  for (const char* host : {"127.0.0.1", "127.5.5.5", "::1", "localhost"}) {
    EXPECT_TRUE(IsLoopback(host)) << host;
  }
  for (const char* host : {"0.0.0.0", "::", "10.0.0.1", "127.evil.example.com", "127.0.0.1.x", "",
                           "127.0.0", "127.0.0.256"}) {
    EXPECT_FALSE(IsLoopback(host)) << host;
  }
}

TEST(AddressTest, PeerNamesLoseKindAndPort) {
  EXPECT_EQ(PeerHost("ipv4:10.0.0.1:4711"), "10.0.0.1");
  EXPECT_EQ(PeerHost("ipv6:%5Bfe80::1%5D:4711"), "fe80::1");
  EXPECT_EQ(PeerHost("ipv6:[::ffff:10.0.0.1]:4711"), "10.0.0.1");
  EXPECT_EQ(PeerHost("unix:/tmp/x"), "");
}

}  // namespace
}  // namespace muster
