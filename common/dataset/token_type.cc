#include "common/dataset/token_type.h"

#include <cstring>
#include <limits>

namespace muster {
namespace {

// Calls `use` with a value of the C++ type of `type`.
template <typename Use>
auto Dispatch(TokenType type, Use use) {
  switch (type) {
    case TokenType::kUint8:
      return use(uint8_t{});
    case TokenType::kInt8:
      return use(int8_t{});
    case TokenType::kInt16:
      return use(int16_t{});
    case TokenType::kInt32:
      return use(int32_t{});
    case TokenType::kInt64:
      return use(int64_t{});
    case TokenType::kFloat64:
      return use(double{});
    case TokenType::kFloat32:
      return use(float{});
    case TokenType::kUint16:
      break;
  }
  return use(uint16_t{});
}

template <typename T>
constexpr int64_t Largest() {
  if constexpr (std::is_floating_point_v<T>) {
    return int64_t{1} << std::numeric_limits<T>::digits;
  } else {
    return static_cast<int64_t>(std::numeric_limits<T>::max());
  }
}

}  // namespace

std::optional<TokenType> TokenTypeFromCode(uint8_t code) {
  if (code < 1 || code > 8) return std::nullopt;
  return static_cast<TokenType>(code);
}

absl::string_view TokenTypeName(TokenType type) {
  constexpr absl::string_view kNames[] = {"uint8", "int8",    "int16",   "int32",
                                          "int64", "float64", "float32", "uint16"};
  return kNames[static_cast<int>(type) - 1];
}

int64_t TokenTypeSize(TokenType type) {
  return Dispatch(type, [](auto zero) { return static_cast<int64_t>(sizeof(zero)); });
}

TokenType TokenTypeForVocabulary(std::optional<int64_t> vocab_size) {
  return vocab_size.has_value() && *vocab_size < 65500 ? TokenType::kUint16 : TokenType::kInt32;
}

int64_t MaxToken(TokenType type) {
  return Dispatch(type, [](auto zero) { return Largest<decltype(zero)>(); });
}

int64_t MinToken(TokenType type) {
  return Dispatch(type, [](auto zero) {
    using T = decltype(zero);
    if constexpr (std::is_floating_point_v<T>) {
      return -Largest<T>();
    } else {
      return static_cast<int64_t>(std::numeric_limits<T>::min());
    }
  });
}

void DecodeTokens(TokenType type, const char* bytes, int64_t count, int64_t* tokens) {
  Dispatch(type, [&](auto zero) {
    using T = decltype(zero);
    for (int64_t i = 0; i < count; ++i) {
      T token;
      std::memcpy(&token, bytes + i * static_cast<int64_t>(sizeof(T)), sizeof(T));
      tokens[i] = static_cast<int64_t>(token);
    }
    return 0;
  });
}

void EncodeToken(TokenType type, int64_t token, std::string& bytes) {
  Dispatch(type, [&](auto zero) {
    const auto value = static_cast<decltype(zero)>(token);
    bytes.append(reinterpret_cast<const char*>(&value), sizeof(value));
    return 0;
  });
}

}  // namespace muster
