// A JSON document as it was written: member order, repeated keys and the text of numbers kept, so
// that every fault can be reported with what stands there. Pure; never throws.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"

namespace muster {

struct JsonMember;

struct JsonNode {
  enum class Kind { kNull, kBool, kNumber, kBadNumber, kString, kArray, kObject };
  Kind kind = Kind::kNull;
  bool boolean = false;
  double number = 0;        // kNumber
  bool is_integer = false;  // kNumber: a whole number that `integer` holds exactly
  int64_t integer = 0;
  // kString: its characters. kNumber: its digits. kBadNumber: NaN, Infinity or a number beyond
  // double, which JSON or double cannot hold.
  std::string text;
  std::vector<JsonNode> items;      // kArray
  std::vector<JsonMember> members;  // kObject, repeated keys included

  // The first member of that name, or nullptr.
  const JsonNode* Find(absl::string_view key) const;
  JsonNode* Find(absl::string_view key);

  static JsonNode Bool(bool value);
  static JsonNode Integer(int64_t value);
  static JsonNode Number(double value);  // the shortest digits that give the value back
  static JsonNode String(absl::string_view value);
  static JsonNode Array();
  static JsonNode Object();
};

struct JsonMember {
  std::string key;
  JsonNode value;
};

struct JsonLimits {
  size_t max_bytes = 1 << 20;
  int max_depth = 64;
};

struct JsonDocument {
  JsonNode root;
  std::string error;  // "" when the text is JSON; else what is wrong, with line and column
};

JsonDocument ParseJson(absl::string_view text, const JsonLimits& limits = {});

// Indented by two spaces, a member a line; arrays in one line.
std::string WriteJson(const JsonNode& node);
// In one line, cut to `max_bytes`: a value inside a message.
std::string ShortJson(const JsonNode& node, size_t max_bytes = 60);
// "a string", "a list", ...
const char* KindName(JsonNode::Kind kind);

}  // namespace muster
