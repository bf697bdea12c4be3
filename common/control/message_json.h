// A message's fields into JSON and back. JSON has no NaN or infinity: such doubles travel as the
// strings "nan", "inf" and "-inf". Finite ones are written with the digits that give the same
// double back (at most 17). For messages.cc.
#pragma once

#include <cmath>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/control/message_fields.h"
#include "nlohmann/json.hpp"

namespace muster::control_fields {

// Field order is kept in the text, "type" first: lines stay readable in a log.
using Json = nlohmann::ordered_json;

template <class T>
inline constexpr bool kIsOptional = false;
template <class T>
inline constexpr bool kIsOptional<std::optional<T>> = true;

class Writer {
 public:
  explicit Writer(Json& json) : json_(json) {}

  template <class T>
  void operator()(const char* name, const T& value) {
    if constexpr (kIsOptional<T>) {
      if (value.has_value()) json_[name] = ToJson(*value);  // absent: not written
    } else {
      json_[name] = ToJson(value);
    }
  }
  template <class T, class D>
  void Later(const char* name, const T& value, const D&) {
    (*this)(name, value);
  }

 private:
  template <class T>
  static Json ToJson(const T& value) {
    return value;
  }
  static Json ToJson(double value) {
    if (std::isnan(value)) return "nan";
    if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
    return value;
  }
  static Json ToJson(Directive::Kind kind) { return EnumToJson(kind); }
  static Json ToJson(StoreRequestMessage::Op op) { return EnumToJson(op); }
  template <class E>
  static Json EnumToJson(E value) {
    for (const auto& entry : NamesOf(value)) {
      if (entry.value == value) return entry.name;
    }
    MUSTER_CHECK_MSG(false, "enum value without a name");
  }
  static Json ToJson(const Directive& directive) {
    Json json = Json::object();
    Writer writer(json);
    VisitDirective(writer, directive);
    return json;
  }
  static Json ToJson(const std::vector<OpArrival>& ops) {
    Json json = Json::array();
    for (const OpArrival& op : ops) {
      Writer writer(json.emplace_back(Json::object()));
      VisitOpArrival(writer, op);
    }
    return json;
  }
  static Json ToJson(const std::vector<std::pair<std::string, std::string>>& entries) {
    Json json = Json::array();
    for (const auto& [key, value] : entries) json.push_back(Json::array({key, value}));
    return json;
  }
  static Json ToJson(const std::map<std::string, double>& values) {
    Json json = Json::object();
    for (const auto& [key, value] : values) json[key] = ToJson(value);
    return json;
  }

  Json& json_;
};

class Reader {
 public:
  Reader(const Json& json, std::string path) : json_(json), path_(std::move(path)) {}

  const absl::Status& status() const { return status_; }

  template <class T>
  void operator()(const char* name, T& value) {
    if (!status_.ok()) return;
    const std::string where = absl::StrCat(path_, ".", name);
    auto it = json_.find(name);
    if constexpr (kIsOptional<T>) {
      value.reset();
      if (it == json_.end()) return;
      Read(where, *it, value.emplace());
    } else {
      if (it == json_.end()) {
        Fail(where, "is missing");
        return;
      }
      Read(where, *it, value);
    }
  }
  template <class T, class D>
  void Later(const char* name, T& value, const D& otherwise) {
    if (json_.contains(name)) {
      (*this)(name, value);
    } else {
      value = otherwise;
    }
  }

 private:
  void Fail(const std::string& where, const std::string& rule) {
    if (status_.ok()) status_ = absl::InvalidArgumentError(absl::StrCat(where, " ", rule));
  }
  void FailType(const std::string& where, const char* wanted, const Json& json) {
    Fail(where, absl::StrCat("must be ", wanted, ", not ", Excerpt(json)));
  }
  // A value as an error shows it: never more than a few words of a long line.
  static std::string Excerpt(const Json& json) {
    if (json.is_structured()) return json.is_array() ? "an array" : "an object";
    std::string text = json.dump(-1, ' ', true, Json::error_handler_t::replace);
    if (text.size() > 40) text = text.substr(0, 40) + "...";
    return text;
  }

  void Read(const std::string& where, const Json& json, std::string& value) {
    if (!json.is_string()) return FailType(where, "a string", json);
    value = json.get_ref<const std::string&>();
  }
  void Read(const std::string& where, const Json& json, bool& value) {
    if (!json.is_boolean()) return FailType(where, "true or false", json);
    value = json.get<bool>();
  }
  void Read(const std::string& where, const Json& json, int64_t& value) {
    if (!json.is_number_integer()) return FailType(where, "a whole number", json);
    if (json.is_number_unsigned() &&
        json.get<uint64_t>() > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
      return FailType(where, "a whole number of 64 bits", json);
    }
    value = json.get<int64_t>();
  }
  void Read(const std::string& where, const Json& json, int& value) {
    int64_t wide = 0;
    Read(where, json, wide);
    if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
      return FailType(where, "a whole number of 32 bits", json);
    }
    value = static_cast<int>(wide);
  }
  void Read(const std::string& where, const Json& json, double& value) {
    if (json.is_number()) {
      value = json.get<double>();
      return;
    }
    if (json == "nan") {
      value = std::numeric_limits<double>::quiet_NaN();
    } else if (json == "inf") {
      value = std::numeric_limits<double>::infinity();
    } else if (json == "-inf") {
      value = -std::numeric_limits<double>::infinity();
    } else {
      FailType(where, "a number, \"nan\", \"inf\" or \"-inf\"", json);
    }
  }
  void Read(const std::string& where, const Json& json, Directive::Kind& value) {
    ReadEnum(where, json, value);
  }
  void Read(const std::string& where, const Json& json, StoreRequestMessage::Op& value) {
    ReadEnum(where, json, value);
  }
  template <class E>
  void ReadEnum(const std::string& where, const Json& json, E& value) {
    std::vector<const char*> names;
    for (const auto& entry : NamesOf(value)) {
      if (json == entry.name) {
        value = entry.value;
        return;
      }
      names.push_back(entry.name);
    }
    FailType(where, absl::StrCat("one of ", absl::StrJoin(names, ", ")).c_str(), json);
  }
  void Read(const std::string& where, const Json& json, Directive& value) {
    if (!json.is_object()) return FailType(where, "an object", json);
    Reader reader(json, where);
    VisitDirective(reader, value);
    status_ = reader.status();
    if (status_.ok() && value.number < 1) Fail(where + ".number", "must be at least 1");
  }
  void Read(const std::string& where, const Json& json, std::vector<OpArrival>& value) {
    if (!json.is_array()) return FailType(where, "an array of operations", json);
    value.clear();
    for (const Json& item : json) {
      const std::string element = absl::StrCat(where, "[", value.size(), "]");
      if (!item.is_object()) return FailType(element, "an object", item);
      Reader reader(item, element);
      VisitOpArrival(reader, value.emplace_back());
      if (status_.ok()) status_ = reader.status();
    }
  }
  void Read(const std::string& where, const Json& json, std::vector<int>& value) {
    if (!json.is_array()) return FailType(where, "an array of whole numbers", json);
    value.clear();
    for (const Json& item : json) {
      const std::string element = absl::StrCat(where, "[", value.size(), "]");
      Read(element, item, value.emplace_back());
    }
  }
  void Read(const std::string& where, const Json& json, std::vector<std::string>& value) {
    if (!json.is_array()) return FailType(where, "an array of strings", json);
    value.clear();
    for (const Json& item : json) {
      const std::string element = absl::StrCat(where, "[", value.size(), "]");
      Read(element, item, value.emplace_back());
    }
  }
  void Read(const std::string& where, const Json& json,
            std::vector<std::pair<std::string, std::string>>& value) {
    if (!json.is_array()) return FailType(where, "an array of [key, value]", json);
    value.clear();
    for (const Json& item : json) {
      const std::string element = absl::StrCat(where, "[", value.size(), "]");
      if (!item.is_array() || item.size() != 2) return FailType(element, "[key, value]", item);
      auto& [key, text] = value.emplace_back();
      Read(element + "[0]", item[0], key);
      Read(element + "[1]", item[1], text);
    }
  }
  void Read(const std::string& where, const Json& json, std::map<std::string, double>& value) {
    if (!json.is_object()) return FailType(where, "an object of numbers", json);
    value.clear();
    for (const auto& [key, item] : json.items()) {
      Read(absl::StrCat(where, ".", key), item, value[key]);
    }
  }

  const Json& json_;
  const std::string path_;
  absl::Status status_;
};

}  // namespace muster::control_fields
