// The token types of Megatron's indexed dataset files, and how a token of each is read as int64.
// Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/strings/string_view.h"

namespace muster {

// Values are the dtype codes in the .idx header.
enum class TokenType : uint8_t {
  kUint8 = 1,
  kInt8 = 2,
  kInt16 = 3,
  kInt32 = 4,
  kInt64 = 5,
  kFloat64 = 6,
  kFloat32 = 7,
  kUint16 = 8,
};

std::optional<TokenType> TokenTypeFromCode(uint8_t code);
absl::string_view TokenTypeName(TokenType type);  // numpy's: "uint16"
int64_t TokenTypeSize(TokenType type);            // bytes

// Megatron's rule: uint16 below 65,500 tokens, int32 otherwise and when the size is not known.
TokenType TokenTypeForVocabulary(std::optional<int64_t> vocab_size);

// The largest and smallest token that fits. Floating types: +-2^53 and +-2^24.
int64_t MaxToken(TokenType type);
int64_t MinToken(TokenType type);

// Converts `count` little-endian tokens; floating ones are truncated.
void DecodeTokens(TokenType type, const char* bytes, int64_t count, int64_t* tokens);
// Appends one token in its file form. Needs MinToken <= token <= MaxToken.
void EncodeToken(TokenType type, int64_t token, std::string& bytes);

}  // namespace muster
