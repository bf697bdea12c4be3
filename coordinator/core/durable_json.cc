#include "coordinator/core/durable_json.h"

#include <charconv>
#include <cmath>
#include <limits>
#include <utility>

#include "absl/strings/escaping.h"

namespace muster {
namespace {

using Json = nlohmann::json;

void AppendString(absl::string_view value, std::string* out) {
  for (const char c : value) {
    if (c >= 0x20 && c < 0x7f && c != '"' && c != '\\') continue;
    // What is not UTF-8 becomes U+FFFD: a record must be readable whatever a trainer has said.
    *out += Json(std::string(value)).dump(-1, ' ', false, Json::error_handler_t::replace);
    return;
  }
  absl::StrAppend(out, "\"", value, "\"");
}

void AppendDouble(double value, std::string* out) {
  if (!std::isfinite(value)) {  // JSON has no such numbers
    absl::StrAppend(out, std::isnan(value) ? "\"nan\"" : value > 0 ? "\"inf\"" : "\"-inf\"");
    return;
  }
  if (value == 0 && std::signbit(value)) {  // "-0" would be read as a whole number
    absl::StrAppend(out, "-0.0");
    return;
  }
  char text[32];  // the fewest digits that give the same double back: 24 at most
  const auto end = std::to_chars(text, text + sizeof(text), value);
  out->append(text, end.ptr);
}

bool ReadDouble(const Json& json, double* value) {
  if (json.is_number()) {
    *value = json.get<double>();
    return true;
  }
  if (json == "nan") {
    *value = std::numeric_limits<double>::quiet_NaN();
  } else if (json == "inf" || json == "-inf") {
    *value = (json == "inf" ? 1 : -1) * std::numeric_limits<double>::infinity();
  } else {
    return false;
  }
  return true;
}

constexpr absl::string_view kNumberRule = "must be a number, \"nan\", \"inf\" or \"-inf\"";

}  // namespace

// ---- writing

void JsonWriter::Raw(const char* name, absl::string_view text) {
  absl::StrAppend(&out_, out_.size() > 1 ? ",\"" : "\"", name, "\":", text);
}

void JsonWriter::Always(const char* name, const std::string& value) {
  Raw(name, "");
  AppendString(value, &out_);
}

void JsonWriter::Always(const char* name, double value) {
  Raw(name, "");
  AppendDouble(value, &out_);
}

void JsonWriter::Bytes(const char* name, const std::string& value) {
  if (!value.empty()) Always(name, absl::Base64Escape(value));
}

void JsonWriter::operator()(const char* name, const std::vector<std::string>& value) {
  if (value.empty()) return;
  Raw(name, "[");
  for (size_t i = 0; i < value.size(); ++i) {
    if (i > 0) out_ += ',';
    AppendString(value[i], &out_);
  }
  out_ += ']';
}

void JsonWriter::operator()(const char* name, const std::vector<double>& value) {
  if (value.empty()) return;
  Raw(name, "[");
  for (size_t i = 0; i < value.size(); ++i) {
    if (i > 0) out_ += ',';
    AppendDouble(value[i], &out_);
  }
  out_ += ']';
}

void JsonWriter::operator()(const char* name, const std::vector<int64_t>& value) {
  if (value.empty()) return;
  Raw(name, absl::StrCat("[", absl::StrJoin(value, ","), "]"));
}

void JsonWriter::operator()(const char* name, const std::map<std::string, double>& value) {
  if (value.empty()) return;
  Raw(name, "{");
  bool first = true;
  for (const auto& [key, number] : value) {
    if (!first) out_ += ',';
    first = false;
    AppendString(key, &out_);
    out_ += ':';
    AppendDouble(number, &out_);
  }
  out_ += '}';
}

std::string JsonWriter::Finish() {
  out_ += '}';
  return std::exchange(out_, "{");
}

// ---- reading

JsonReader::JsonReader(std::string where, const std::string& text)
    : JsonReader(std::move(where), Json::parse(text, nullptr, /*allow_exceptions=*/false)) {}

JsonReader::JsonReader(std::string where, Json value)
    : where_(std::move(where)), json_(std::move(value)) {
  if (json_.is_object()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(where_, ": must be a JSON object"));
}

const Json* JsonReader::Find(const char* name) const {
  if (!status_.ok()) return nullptr;
  const auto found = json_.find(name);
  return found == json_.end() ? nullptr : &*found;
}

void JsonReader::Fail(const char* name, absl::string_view rule) {
  if (!status_.ok()) return;
  status_ = absl::InvalidArgumentError(absl::StrCat(where_, ", ", name, ": ", rule));
}

void JsonReader::operator()(const char* name, std::string& value) {
  const Json* json = Find(name);
  if (json == nullptr) return;
  if (!json->is_string()) return Fail(name, "must be a string");
  value = json->get_ref<const std::string&>();
}

void JsonReader::operator()(const char* name, bool& value) {
  const Json* json = Find(name);
  if (json == nullptr) return;
  if (!json->is_boolean()) return Fail(name, "must be true or false");
  value = json->get<bool>();
}

void JsonReader::operator()(const char* name, int64_t& value) {
  const Json* json = Find(name);
  if (json == nullptr) return;
  const bool fits = json->is_number_integer() &&
                    (!json->is_number_unsigned() ||
                     json->get<uint64_t>() <= uint64_t{std::numeric_limits<int64_t>::max()});
  if (!fits) return Fail(name, "must be a whole number of 64 bits");
  value = json->get<int64_t>();
}

void JsonReader::operator()(const char* name, int& value) {
  int64_t wide = value;
  (*this)(name, wide);
  if (wide < std::numeric_limits<int>::min() || wide > std::numeric_limits<int>::max()) {
    return Fail(name, "must be a whole number of 32 bits");
  }
  value = static_cast<int>(wide);
}

void JsonReader::operator()(const char* name, double& value) {
  const Json* json = Find(name);
  if (json != nullptr && !ReadDouble(*json, &value)) Fail(name, kNumberRule);
}

void JsonReader::operator()(const char* name, absl::Time& value) {
  if (Find(name) == nullptr) return;
  int64_t nanos = 0;
  (*this)(name, nanos);
  value = absl::FromUnixNanos(nanos);
}

void JsonReader::operator()(const char* name, std::vector<std::string>& value) {
  const Json* json = Find(name);
  if (json == nullptr) return;
  if (!json->is_array()) return Fail(name, "must be a list of strings");
  for (const Json& element : *json) {
    if (!element.is_string()) return Fail(name, "must be a list of strings");
    value.push_back(element.get_ref<const std::string&>());
  }
}

void JsonReader::operator()(const char* name, std::vector<double>& value) {
  const Json* json = Find(name);
  if (json == nullptr) return;
  if (!json->is_array()) return Fail(name, "must be a list of numbers");
  for (const Json& element : *json) {
    if (!ReadDouble(element, &value.emplace_back())) return Fail(name, kNumberRule);
  }
}

void JsonReader::operator()(const char* name, std::vector<int64_t>& value) {
  const Json* json = Find(name);
  if (json == nullptr) return;
  if (!json->is_array()) return Fail(name, "must be a list of whole numbers");
  for (const Json& element : *json) {
    if (!element.is_number_integer()) return Fail(name, "must be a list of whole numbers");
    value.push_back(element.get<int64_t>());
  }
}

void JsonReader::operator()(const char* name, std::map<std::string, double>& value) {
  const Json* json = Find(name);
  if (json == nullptr) return;
  if (!json->is_object()) return Fail(name, "must be an object of numbers");
  for (const auto& [key, element] : json->items()) {
    if (!ReadDouble(element, &value[key])) return Fail(name, kNumberRule);
  }
}

void JsonReader::Bytes(const char* name, std::string& value) {
  if (Find(name) == nullptr) return;
  std::string text;
  (*this)(name, text);
  if (!absl::Base64Unescape(text, &value)) Fail(name, "must be base64");
}

std::string ToHex(const std::string& bytes) { return absl::BytesToHexString(bytes); }

bool FromHex(absl::string_view text, std::string* bytes) {
  if (text.size() % 2 != 0) return false;
  for (const char c : text) {
    if (!(c >= '0' && c <= '9') && !(c >= 'a' && c <= 'f')) return false;
  }
  *bytes = absl::HexStringToBytes(text);
  return true;
}

}  // namespace muster
