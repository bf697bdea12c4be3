#include "common/spec/json_tree.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using nlohmann::json;

std::string Position(absl::string_view text, size_t offset) {
  size_t line = 1, column = 1;
  for (size_t i = 0; i < offset && i < text.size(); ++i) {
    if (text[i] == '\n') {
      ++line;
      column = 1;
    } else if ((static_cast<unsigned char>(text[i]) & 0xC0) != 0x80) {  // not inside a character
      ++column;
    }
  }
  return absl::StrCat("line ", line, ", column ", column);
}

// Builds the tree from nlohmann's events. The parser stops for good at a number that it cannot
// hold; ParseJson then blanks it out, notes which scalar of the document it was, and parses again.
class TreeBuilder : public nlohmann::json_sax<json> {
 public:
  TreeBuilder(JsonNode* root, const std::map<int, std::string>& bad_numbers, int max_depth)
      : root_(root), bad_numbers_(bad_numbers), max_depth_(max_depth) {}

  bool null() override { return Scalar(JsonNode()); }
  bool boolean(bool value) override { return Scalar(JsonNode::Bool(value)); }
  bool number_integer(int64_t value) override { return Scalar(JsonNode::Integer(value)); }
  bool number_unsigned(uint64_t value) override {
    if (value <= static_cast<uint64_t>(INT64_MAX)) {
      return Scalar(JsonNode::Integer(static_cast<int64_t>(value)));
    }
    return Real(static_cast<double>(value), absl::StrCat(value));
  }
  bool number_float(double value, const std::string& digits) override {
    return Real(value, digits);
  }
  bool string(std::string& value) override { return Scalar(JsonNode::String(value)); }
  bool binary(json::binary_t&) override { return false; }  // not in text
  bool start_object(size_t) override { return Open(JsonNode::Object()); }
  bool start_array(size_t) override { return Open(JsonNode::Array()); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(std::string& key) override {
    open_.back()->members.push_back({key, JsonNode()});
    return true;
  }
  bool parse_error(size_t position, const std::string&, const json::exception& error) override {
    error_offset = position == 0 ? 0 : position - 1;
    error_id = error.id;
    error_text = error.what();
    return false;
  }

  int num_scalars() const { return num_scalars_; }
  bool too_deep() const { return too_deep_; }

  size_t error_offset = 0;  // of the last character that was read
  int error_id = 0;
  std::string error_text;

 private:
  JsonNode* Place(JsonNode node) {
    JsonNode* place = root_;
    if (!open_.empty()) {
      JsonNode* parent = open_.back();
      if (parent->kind == JsonNode::Kind::kArray) {
        parent->items.emplace_back();
        place = &parent->items.back();
      } else {
        place = &parent->members.back().value;
      }
    }
    *place = std::move(node);
    return place;
  }
  bool Scalar(JsonNode node) {
    if (auto bad = bad_numbers_.find(num_scalars_++); bad != bad_numbers_.end()) {
      node = JsonNode::String(bad->second);
      node.kind = JsonNode::Kind::kBadNumber;
    }
    Place(std::move(node));
    return true;
  }
  bool Real(double value, const std::string& digits) {
    JsonNode node;
    node.kind = JsonNode::Kind::kNumber;
    node.number = value;
    node.text = digits;
    // 1e6 or 4.0 where a whole number is wanted is fine while double holds it exactly.
    if (std::trunc(value) == value && std::abs(value) <= 9007199254740992.0) {
      node.is_integer = true;
      node.integer = static_cast<int64_t>(value);
    }
    return Scalar(std::move(node));
  }
  bool Open(JsonNode node) {
    if (static_cast<int>(open_.size()) >= max_depth_) {
      too_deep_ = true;
      return false;
    }
    open_.push_back(Place(std::move(node)));
    return true;
  }
  bool Close() {
    open_.pop_back();
    return true;
  }

  JsonNode* const root_;
  const std::map<int, std::string>& bad_numbers_;
  const int max_depth_;
  std::vector<JsonNode*> open_;  // a parent does not grow while its last child is open
  int num_scalars_ = 0;
  bool too_deep_ = false;
};

// [begin, end) of the word that the character at `offset` belongs to.
std::pair<size_t, size_t> WordAt(absl::string_view text, size_t offset) {
  const auto in_word = [&](size_t i) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    return std::isalnum(c) != 0 || c == '+' || c == '-' || c == '.';
  };
  size_t begin = std::min(offset, text.size()), end = begin;
  while (begin > 0 && in_word(begin - 1)) --begin;
  while (end < text.size() && in_word(end)) ++end;
  return {begin, end};
}

bool IsNotANumberWord(absl::string_view word) {
  std::string lower = absl::AsciiStrToLower(word);
  if (absl::StartsWith(lower, "-") || absl::StartsWith(lower, "+")) lower = lower.substr(1);
  return lower == "nan" || lower == "inf" || lower == "infinity";
}

std::string SyntaxError(absl::string_view text, const TreeBuilder& builder) {
  if (absl::StrContains(builder.error_text, "UTF-8")) {
    return absl::StrCat("invalid UTF-8 at ", Position(text, builder.error_offset),
                        "; save the file as UTF-8");
  }
  // nlohmann's what(): "[json.exception...] parse error at line 1, column 2: <explanation>".
  absl::string_view why = builder.error_text;
  const size_t colon = why.find(": ");
  if (colon != absl::string_view::npos) why = why.substr(colon + 2);
  const size_t dash = why.find(" - ");
  if (dash != absl::string_view::npos) why = why.substr(dash + 3);
  if (absl::StrContains(why, "unexpected end of input")) {
    return absl::StrCat("not valid JSON: the text ends too early, at ", Position(text, text.size()),
                        "; a bracket, brace or quote is still open");
  }
  return absl::StrCat("not valid JSON at ", Position(text, builder.error_offset), ": ",
                      absl::string_view(why).substr(0, 200));
}

std::string Quoted(absl::string_view text) {
  return json(std::string(text)).dump(-1, ' ', false, json::error_handler_t::replace);
}

void Write(const JsonNode& node, int indent, bool one_line, std::string* out) {
  switch (node.kind) {
    case JsonNode::Kind::kNull:
      out->append("null");
      return;
    case JsonNode::Kind::kBool:
      out->append(node.boolean ? "true" : "false");
      return;
    case JsonNode::Kind::kNumber:
    case JsonNode::Kind::kBadNumber:
      out->append(node.text);
      return;
    case JsonNode::Kind::kString:
      out->append(Quoted(node.text));
      return;
    case JsonNode::Kind::kArray: {
      const char* separator = "[";
      for (const JsonNode& item : node.items) {
        out->append(separator);
        Write(item, indent, /*one_line=*/true, out);
        separator = ", ";
      }
      out->append(node.items.empty() ? "[]" : "]");
      return;
    }
    case JsonNode::Kind::kObject: {
      const std::string space = one_line ? "" : absl::StrCat("\n", std::string(indent + 2, ' '));
      const char* separator = "{";
      for (const JsonMember& member : node.members) {
        absl::StrAppend(out, separator, space, Quoted(member.key), ": ");
        Write(member.value, indent + 2, one_line, out);
        separator = one_line ? ", " : ",";
      }
      if (node.members.empty()) {
        out->append("{}");
      } else {
        absl::StrAppend(out, one_line ? "" : absl::StrCat("\n", std::string(indent, ' ')), "}");
      }
      return;
    }
  }
}

}  // namespace

const JsonNode* JsonNode::Find(absl::string_view key) const {
  for (const JsonMember& member : members) {
    if (member.key == key) return &member.value;
  }
  return nullptr;
}
JsonNode* JsonNode::Find(absl::string_view key) {
  return const_cast<JsonNode*>(std::as_const(*this).Find(key));
}

JsonNode JsonNode::Bool(bool value) {
  JsonNode node;
  node.kind = Kind::kBool;
  node.boolean = value;
  return node;
}
JsonNode JsonNode::Integer(int64_t value) {
  JsonNode node;
  node.kind = Kind::kNumber;
  node.number = static_cast<double>(value);
  node.is_integer = true;
  node.integer = value;
  node.text = absl::StrCat(value);
  return node;
}
JsonNode JsonNode::Number(double value) {
  JsonNode node;
  node.kind = Kind::kNumber;
  node.number = value;
  node.text = json(value).dump();
  return node;
}
JsonNode JsonNode::String(absl::string_view value) {
  JsonNode node;
  node.kind = Kind::kString;
  node.text = std::string(value);
  return node;
}
JsonNode JsonNode::Array() {
  JsonNode node;
  node.kind = Kind::kArray;
  return node;
}
JsonNode JsonNode::Object() {
  JsonNode node;
  node.kind = Kind::kObject;
  return node;
}

JsonDocument ParseJson(absl::string_view given, const JsonLimits& limits) {
  JsonDocument document;
  if (given.size() > limits.max_bytes) {
    document.error = absl::StrCat("the document has ", given.size(), " bytes; at most ",
                                  limits.max_bytes, " are allowed");
    return document;
  }
  if (absl::StripAsciiWhitespace(given).empty()) {
    document.error = "the document is empty; expected a JSON object";
    return document;
  }
  constexpr size_t kMaxBadNumbers = 100;
  std::string text(given);
  std::map<int, std::string> bad_numbers;  // by their place among the document's scalars
  try {
    while (true) {
      document.root = JsonNode();
      TreeBuilder builder(&document.root, bad_numbers, limits.max_depth);
      if (json::sax_parse(text, &builder)) return document;
      if (builder.too_deep()) {
        document.error =
            absl::StrCat("nested deeper than ", limits.max_depth, " levels; a spec has three");
        return document;
      }
      const auto [begin, end] = WordAt(text, builder.error_offset);
      const std::string word = text.substr(begin, end - begin);
      constexpr int kOutOfRange = 406;  // json.exception.out_of_range.406: beyond double
      if ((builder.error_id == kOutOfRange || IsNotANumberWord(word)) && end > begin &&
          bad_numbers.size() < kMaxBadNumbers) {
        bad_numbers[builder.num_scalars()] = word;
        text.replace(begin, end - begin, absl::StrCat("0", std::string(end - begin - 1, ' ')));
        continue;
      }
      document.error = SyntaxError(given, builder);
      return document;
    }
  } catch (const std::exception& error) {  // nothing above should throw
    document.error = absl::StrCat("not valid JSON: ", error.what());
    return document;
  }
}

std::string WriteJson(const JsonNode& node) {
  std::string out;
  Write(node, 0, /*one_line=*/false, &out);
  return out;
}

std::string ShortJson(const JsonNode& node, size_t max_bytes) {
  std::string out;
  Write(node, 0, /*one_line=*/true, &out);
  if (out.size() <= max_bytes) return out;
  size_t cut = max_bytes;
  while (cut > 0 && (static_cast<unsigned char>(out[cut]) & 0xC0) == 0x80) --cut;
  return out.substr(0, cut) + "...";
}

const char* KindName(JsonNode::Kind kind) {
  switch (kind) {
    case JsonNode::Kind::kNull:
      return "null";
    case JsonNode::Kind::kBool:
      return "true or false";
    case JsonNode::Kind::kNumber:
      return "a number";
    case JsonNode::Kind::kBadNumber:
      return "not a finite number";
    case JsonNode::Kind::kString:
      return "a string";
    case JsonNode::Kind::kArray:
      return "a list";
    case JsonNode::Kind::kObject:
      return "an object";
  }
  return "";
}

}  // namespace muster
