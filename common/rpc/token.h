// The secret that the processes of one cluster share (--token-file). It travels as the metadata
// `authorization: Bearer TOKEN` of every call; nothing prints it, so it has no way to a stream.
// Thread-safe: a value.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

inline constexpr char kAuthorizationKey[] = "authorization";

class Token {
 public:
  Token() = default;  // none
  // INVALID_ARGUMENT unless it is 16 to 4096 visible ASCII characters (what a metadata value may
  // hold, without blanks). The message does not repeat it.
  static absl::StatusOr<Token> FromText(absl::string_view text);

  bool empty() const { return text_.empty(); }
  // "Bearer TOKEN". Precondition: not empty.
  std::string AuthorizationValue() const;
  // Whether `authorization` is that value. Its time depends on the length of `authorization` only,
  // so that it tells nothing about how far a guess is right. Precondition: not empty.
  bool Matches(absl::string_view authorization) const;

 private:
  std::string text_;
};

// The token in `path`: one line. INVALID_ARGUMENT names the file and what is wrong: it is not a
// regular file, not mode 0600 or 0400, or its content is no token; NOT_FOUND when it is not there.
absl::StatusOr<Token> ReadTokenFile(const std::string& path);

// What a person reads whose call to `address` ended in UNAUTHENTICATED. `token_file`: the one that
// was given, or empty.
std::string DescribeRefusal(absl::string_view address, absl::string_view token_file);

}  // namespace muster
