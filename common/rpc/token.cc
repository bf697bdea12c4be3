#include "common/rpc/token.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr size_t kMinToken = 16, kMaxToken = 4096;  // bytes

absl::Status Unfit(const std::string& path, absl::string_view why) {
  return absl::InvalidArgumentError(absl::StrCat("token file ", path, ": ", why));
}

// One line, its end not counted. Reads one byte more than the longest that is allowed.
absl::StatusOr<std::string> ReadLine(const std::string& path, int fd) {
  std::string text(kMaxToken + 3, '\0');
  size_t size = 0;
  while (size < text.size()) {
    const ssize_t count = read(fd, text.data() + size, text.size() - size);
    if (count < 0 && errno == EINTR) continue;
    if (count < 0) return Unfit(path, absl::StrCat("cannot be read: ", std::strerror(errno)));
    if (count == 0) break;
    size += static_cast<size_t>(count);
  }
  text.resize(size);
  absl::string_view line = text;
  if (absl::ConsumeSuffix(&line, "\n")) absl::ConsumeSuffix(&line, "\r");
  return std::string(line);
}

}  // namespace

absl::StatusOr<Token> Token::FromText(absl::string_view text) {
  if (text.size() < kMinToken || text.size() > kMaxToken) {
    return absl::InvalidArgumentError(
        absl::StrCat("a token has ", kMinToken, " to ", kMaxToken, " bytes on one line, this has ",
                     text.size() > kMaxToken ? "more" : absl::StrCat(text.size())));
  }
  const auto visible = [](char c) { return c > ' ' && c < '\x7f'; };
  const auto bad = std::find_if_not(text.begin(), text.end(), visible);
  if (bad != text.end()) {
    return absl::InvalidArgumentError(absl::StrFormat(
        "a token is one line of visible ASCII characters without blanks; byte %d is 0x%02x",
        bad - text.begin() + 1, static_cast<unsigned char>(*bad)));
  }
  Token token;
  token.text_ = std::string(text);
  return token;
}

std::string Token::AuthorizationValue() const { return absl::StrCat("Bearer ", text_); }

bool Token::Matches(absl::string_view authorization) const {
  const std::string expected = AuthorizationValue();
  // Every byte is looked at; volatile keeps the compiler from leaving the loop early.
  volatile unsigned difference = expected.size() == authorization.size() ? 0 : 1;
  for (size_t i = 0; i < authorization.size(); ++i) {
    const char want = expected[i % expected.size()];
    difference = difference | static_cast<unsigned char>(want ^ authorization[i]);
  }
  return difference == 0;
}

absl::StatusOr<Token> ReadTokenFile(const std::string& path) {
  // Non-blocking: to open a FIFO must not wait for its writer. A link is followed: where secrets
  // are mounted, they are links.
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) {
    const int error = errno;
    const std::string message =
        absl::StrCat("token file ", path, ": cannot be opened: ", std::strerror(error));
    return error == ENOENT ? absl::NotFoundError(message) : absl::InvalidArgumentError(message);
  }
  const auto closer = absl::MakeCleanup([fd] { close(fd); });
  struct stat info = {};
  if (fstat(fd, &info) != 0) return Unfit(path, std::strerror(errno));
  if (!S_ISREG(info.st_mode)) return Unfit(path, "must be a regular file");
  const unsigned mode = info.st_mode & 07777;
  if (mode != 0600 && mode != 0400) {
    return Unfit(path, absl::StrFormat("has mode %04o, but must be readable by its owner only: "
                                       "0600 or 0400 (chmod 600 %s)",
                                       mode, path));
  }
  ASSIGN_OR_RETURN(const std::string line, ReadLine(path, fd));
  absl::StatusOr<Token> token = Token::FromText(line);
  if (!token.ok()) return Unfit(path, token.status().message());
  return token;
}

std::string DescribeRefusal(absl::string_view address, absl::string_view token_file) {
  if (token_file.empty()) {
    return absl::StrCat("the coordinator at ", address,
                        " needs a token: give --token-file FILE, with the token that "
                        "muster-coordinator was started with");
  }
  return absl::StrCat("the coordinator at ", address, " refuses the token of ", token_file,
                      "; give the token that muster-coordinator was started with");
}

}  // namespace muster
