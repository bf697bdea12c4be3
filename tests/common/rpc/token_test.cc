#include "common/rpc/token.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr char kSecret[] = "0123456789abcdef";

class TokenFileTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string pattern = testing::TempDir() + "/token-XXXXXX";
    ASSERT_NE(mkdtemp(pattern.data()), nullptr);
    folder_ = pattern;
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  std::string Write(const std::string& text, mode_t mode = 0600) {
    const std::string path = folder_ + "/token";
    std::ofstream(path, std::ios::trunc) << text;
    EXPECT_EQ(chmod(path.c_str(), mode), 0);
    return path;
  }
  static std::string Problem(const std::string& path) {
    const auto token = ReadTokenFile(path);
    EXPECT_FALSE(token.ok());
    return std::string(token.status().message());
  }
  std::string folder_;
};

TEST_F(TokenFileTest, OneLineIsTheTokenWithoutItsEnd) {
  for (const char* end : {"", "\n", "\r\n"}) {
    const auto token = ReadTokenFile(Write(absl::StrCat(kSecret, end)));
    ASSERT_TRUE(token.ok()) << token.status();
    EXPECT_EQ(token->AuthorizationValue(), "Bearer 0123456789abcdef");
  }
  EXPECT_TRUE(ReadTokenFile(Write(kSecret, 0400)).ok());
  EXPECT_TRUE(ReadTokenFile(Write(std::string(4096, 'x') + "\n")).ok());
}

TEST_F(TokenFileTest, AModeThatOthersCouldUseIsRefused) {
  for (const mode_t mode : {0644, 0640, 0660, 0604, 0700, 0500}) {
    const std::string path = Write(kSecret, mode);
    EXPECT_THAT(Problem(path), AllOf(HasSubstr(path), HasSubstr(absl::StrFormat("mode %04o", mode)),
                                     HasSubstr("chmod 600 " + path)));
  }
}

TEST_F(TokenFileTest, OnlyARegularFileIsRead) {
  EXPECT_THAT(Problem(folder_), HasSubstr("must be a regular file"));
  const std::string fifo = folder_ + "/fifo";
  ASSERT_EQ(mkfifo(fifo.c_str(), 0600), 0);
  EXPECT_THAT(Problem(fifo), HasSubstr("must be a regular file"));
  EXPECT_TRUE(absl::IsNotFound(ReadTokenFile(folder_ + "/none").status()));
  const std::string link = folder_ + "/link";
  std::filesystem::create_symlink(Write(kSecret), link);
  EXPECT_TRUE(ReadTokenFile(link).ok()) << "mounted secrets are links";
}

TEST_F(TokenFileTest, ContentThatIsNoTokenIsRefusedWithoutBeingRepeated) {
  const std::string short_one = "too-short-secre";  // 15
  EXPECT_THAT(Problem(Write(short_one + "\n")),
              AllOf(HasSubstr("this has 15"), Not(HasSubstr(short_one))));
  EXPECT_THAT(Problem(Write("")), HasSubstr("this has 0"));
  EXPECT_THAT(Problem(Write(std::string(4097, 'x'))), HasSubstr("has more"));
  EXPECT_THAT(Problem(Write(std::string(100'000, 'x'))), HasSubstr("has more"));
  EXPECT_THAT(Problem(Write("first-line-0123456789\nsecond-line\n")),
              AllOf(HasSubstr("one line"), HasSubstr("0x0a"), Not(HasSubstr("first-line"))));
  EXPECT_THAT(Problem(Write("0123456789 abcdef")), HasSubstr("byte 11 is 0x20"));
  EXPECT_THAT(Problem(Write("0123456789abcd\xc3\xa4")), HasSubstr("byte 15 is 0xc3"));
  EXPECT_THAT(Problem(Write(std::string("0123456789abcdef\0", 17))), HasSubstr("0x00"));
}

TEST(TokenTest, OnlyTheWholeValueMatches) {
  const auto token = Token::FromText(kSecret);
  ASSERT_TRUE(token.ok());
  EXPECT_TRUE(token->Matches("Bearer 0123456789abcdef"));
  for (const char* wrong :
       {"", "Bearer ", "Bearer 0123456789abcdeg", "Bearer 0123456789abcde",
        "Bearer 0123456789abcdefBearer 0123456789abcdef", "bearer 0123456789abcdef",
        "0123456789abcdef", "Bearer 0123456789abcdef ", "Xearer 0123456789abcdef"}) {
    EXPECT_FALSE(token->Matches(wrong)) << wrong;
  }
}

TEST(TokenTest, TheRefusalSaysWhatToGive) {
  EXPECT_EQ(DescribeRefusal("h:1", "/t"),
            "the coordinator at h:1 refuses the token of /t; give the token that "
            "muster-coordinator was started with");
  EXPECT_THAT(DescribeRefusal("h:1", ""), HasSubstr("needs a token: give --token-file FILE"));
}

}  // namespace
}  // namespace muster
