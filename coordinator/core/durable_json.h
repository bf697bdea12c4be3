// One JSON object a record, written and read by the same list of fields:
//
//   template <class V, class M> void Visit(V& v, M& m) { v("worker", m.worker); ... }
//
// JsonWriter leaves out what is zero, empty or false, so that records stay small; JsonReader leaves
// a member as it is when its field is missing. A member whose default is not zero is written
// always: v.Always(). Reading never throws: the first fault is kept, with the record's key, the
// field and the rule, and everything after it is left alone. Unknown fields are ignored.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "nlohmann/json.hpp"

namespace muster {

template <typename E>
struct EnumName {
  E value;
  const char* name;
};

class JsonWriter {
 public:
  void operator()(const char* name, const std::string& value) {
    if (!value.empty()) Always(name, value);
  }
  void operator()(const char* name, bool value) {
    if (value) Raw(name, "true");
  }
  void operator()(const char* name, int value) { (*this)(name, int64_t{value}); }
  void operator()(const char* name, int64_t value) {
    if (value != 0) Always(name, value);
  }
  void operator()(const char* name, double value) {
    if (value != 0 || value != value) Always(name, value);
  }
  // Nanoseconds since 1970; what lies outside of int64 is cut off there.
  void operator()(const char* name, absl::Time value) { Always(name, absl::ToUnixNanos(value)); }
  void operator()(const char* name, const std::vector<std::string>& value);
  void operator()(const char* name, const std::vector<double>& value);
  void operator()(const char* name, const std::vector<int64_t>& value);
  void operator()(const char* name, const std::map<std::string, double>& value);
  template <typename T>
  void operator()(const char* name, const std::optional<T>& value) {
    if (value.has_value()) Always(name, *value);
  }
  template <typename E, size_t N>
  void Enum(const char* name, const std::optional<E>& value, const EnumName<E> (&names)[N]) {
    if (value.has_value()) Enum(name, *value, names);
  }
  void Always(const char* name, const std::string& value);
  void Always(const char* name, int value) { Always(name, int64_t{value}); }
  void Always(const char* name, int64_t value) { Raw(name, absl::AlphaNum(value).Piece()); }
  void Always(const char* name, double value);
  void Always(const char* name, absl::Time value) { (*this)(name, value); }
  // Any bytes, as base64.
  void Bytes(const char* name, const std::string& value);
  template <typename E, size_t N>
  void Enum(const char* name, E value, const EnumName<E> (&names)[N]) {
    for (const EnumName<E>& entry : names) {
      if (entry.value == value) Always(name, std::string(entry.name));
    }
  }
  // visit(writer, *value): an object within this one.
  template <typename T, typename Visit>
  void Nested(const char* name, const std::optional<T>& value, Visit visit) {
    if (!value.has_value()) return;
    JsonWriter inner;
    visit(inner, *value);
    Raw(name, inner.Finish());
  }
  // visit(writer, element) for each one.
  template <typename T, typename Visit>
  void List(const char* name, const std::vector<T>& values, Visit visit) {
    std::string text = "[";
    for (const T& value : values) {
      JsonWriter element;
      visit(element, value);
      absl::StrAppend(&text, text.size() > 1 ? "," : "", element.Finish());
    }
    text += "]";
    Raw(name, text);
  }

  // The object's text; the writer is empty again.
  std::string Finish();

 private:
  void Raw(const char* name, absl::string_view text);  // of any JSON value
  std::string out_ = "{";
};

class JsonReader {
 public:
  // `where` names the record in errors.
  JsonReader(std::string where, const std::string& text);

  void operator()(const char* name, std::string& value);
  void operator()(const char* name, bool& value);
  void operator()(const char* name, int& value);
  void operator()(const char* name, int64_t& value);
  void operator()(const char* name, double& value);
  void operator()(const char* name, absl::Time& value);
  void operator()(const char* name, std::vector<std::string>& value);
  void operator()(const char* name, std::vector<double>& value);
  void operator()(const char* name, std::vector<int64_t>& value);
  void operator()(const char* name, std::map<std::string, double>& value);
  template <typename T>
  void operator()(const char* name, std::optional<T>& value) {
    if (Find(name) == nullptr) return;
    (*this)(name, value.emplace());
  }
  template <typename T>
  void Always(const char* name, T& value) {
    (*this)(name, value);
  }
  void Bytes(const char* name, std::string& value);
  template <typename E, size_t N>
  void Enum(const char* name, E& value, const EnumName<E> (&names)[N]) {
    if (Find(name) == nullptr) return;
    std::string text;
    (*this)(name, text);
    for (const EnumName<E>& entry : names) {
      if (text != entry.name) continue;
      value = entry.value;
      return;
    }
    Fail(name, absl::StrCat("\"", text.substr(0, 64), "\" is not one of its names"));
  }
  template <typename E, size_t N>
  void Enum(const char* name, std::optional<E>& value, const EnumName<E> (&names)[N]) {
    if (Find(name) == nullptr) return;
    Enum(name, value.emplace(), names);
  }
  template <typename T, typename Visit>
  void Nested(const char* name, std::optional<T>& value, Visit visit) {
    const nlohmann::json* json = Find(name);
    if (json == nullptr) return;
    JsonReader reader(absl::StrCat(where_, ", ", name), *json);
    visit(reader, value.emplace());
    status_ = reader.status();
  }
  template <typename T, typename Visit>
  void List(const char* name, std::vector<T>& values, Visit visit) {
    const nlohmann::json* list = Find(name);
    if (list == nullptr) return;
    if (!list->is_array()) return Fail(name, "must be a list of objects");
    for (const nlohmann::json& element : *list) {
      JsonReader reader(absl::StrCat(where_, ", ", name), element);
      visit(reader, values.emplace_back());
      if (!reader.status().ok() && status_.ok()) status_ = reader.status();
    }
  }

  // A rule that the caller checks; the first fault stays.
  void Check(bool holds, const char* name, absl::string_view rule) {
    if (!holds) Fail(name, rule);
  }
  const absl::Status& status() const { return status_; }

 private:
  JsonReader(std::string where, nlohmann::json value);
  const nlohmann::json* Find(const char* name) const;  // nullptr: missing, or an earlier fault
  void Fail(const char* name, absl::string_view rule);

  std::string where_;
  nlohmann::json json_;
  absl::Status status_;
};

// Bytes as lower-case hex, for keys of records; false for what is no such text.
std::string ToHex(const std::string& bytes);
bool FromHex(absl::string_view text, std::string* bytes);

}  // namespace muster
