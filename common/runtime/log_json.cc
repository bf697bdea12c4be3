// A record of the log as one JSON object.
#include <cstdio>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/utf8.h"
#include "common/runtime/log.h"

namespace muster {
namespace {

std::string Quoted(absl::string_view text) {
  std::string quoted = "\"";
  for (const char c : ValidUtf8(text)) {
    if (c == '"' || c == '\\') {
      quoted += '\\';
      quoted += c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned char>(c));
      quoted += escaped;
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

// Characters of the key at the start of `text` that "=" follows; 0: there is none.
size_t KeyLength(absl::string_view text) {
  size_t length = 0;
  for (const char c : text.substr(0, 64)) {
    if (c == '=') return length;
    if (!(c >= 'a' && c <= 'z') && !(c >= '0' && c <= '9') && c != '_') return 0;
    ++length;
  }
  return 0;
}

// Takes "key=value" or "key=\"value\"" and the blank behind it off the start of `text`.
bool ConsumeField(absl::string_view* text, std::pair<std::string, std::string>* field) {
  const size_t equals = KeyLength(*text);
  if (equals == 0) return false;
  absl::string_view rest = text->substr(equals + 1);
  size_t end = 0;
  absl::string_view value;
  if (absl::ConsumePrefix(&rest, "\"")) {
    // Up to a quote that ends the text or has another field behind it: a value may hold quotes.
    for (end = rest.find('"'); end != absl::string_view::npos; end = rest.find('"', end + 1)) {
      if (end + 1 == rest.size()) break;
      if (rest[end + 1] == ' ' && KeyLength(rest.substr(end + 2)) > 0) break;
    }
    if (end == absl::string_view::npos) return false;
    value = rest.substr(0, end);
    rest.remove_prefix(end + 1);
  } else {
    value = rest.substr(0, rest.find(' '));
    rest.remove_prefix(value.size());
  }
  *field = {std::string(text->substr(0, equals)), std::string(value)};
  absl::ConsumePrefix(&rest, " ");
  *text = rest;
  return true;
}

// A record is a message and then fields: whatever follows the first blank from which on all is
// fields.
struct Record {
  absl::string_view message;
  std::vector<std::pair<std::string, std::string>> fields;
};

Record Parse(absl::string_view text) {
  for (size_t start = 0; start != absl::string_view::npos;
       start = text.find(' ', start), start += start == absl::string_view::npos ? 0 : 1) {
    absl::string_view rest = text.substr(start);
    Record record{.message = absl::StripSuffix(text.substr(0, start), " "), .fields = {}};
    std::pair<std::string, std::string> field;
    while (ConsumeField(&rest, &field)) record.fields.push_back(field);
    if (rest.empty()) return record;
  }
  return {.message = text, .fields = {}};
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "?";
}

}  // namespace

std::string LogRecordAsJson(absl::Time time, LogLevel level, absl::string_view process,
                            const LogContext& context, absl::string_view text) {
  const Record record = Parse(text);
  const auto own = [&](absl::string_view key) -> std::string {
    for (const auto& [name, value] : record.fields) {
      if (name == key) return value;
    }
    return "";
  };
  std::string json = absl::StrCat(
      "{\"time\": \"", absl::FormatTime("%Y-%m-%dT%H:%M:%E3SZ", time, absl::UTCTimeZone()),
      "\", \"level\": \"", LevelName(level), "\", \"process\": ", Quoted(process));
  const auto add_text = [&](const char* name, const std::string& known) {
    const std::string value = known.empty() ? own(name) : known;
    if (!value.empty()) absl::StrAppend(&json, ", \"", name, "\": ", Quoted(value));
  };
  const auto add_number = [&](const char* name, std::optional<int64_t> known) {
    int64_t value = known.value_or(0);
    if (known.has_value() || absl::SimpleAtoi(own(name), &value)) {
      absl::StrAppend(&json, ", \"", name, "\": ", value);
    }
  };
  add_text("job", context.job);
  add_number("epoch", context.epoch);
  add_number("rank", context.rank);
  add_text("worker", context.worker);
  absl::StrAppend(&json, ", \"message\": ", Quoted(record.message));
  absl::string_view separator = ", \"fields\": {";
  for (const auto& [name, value] : record.fields) {
    absl::StrAppend(&json, separator, Quoted(name), ": ", Quoted(value));
    separator = ", ";
  }
  return absl::StrCat(json, record.fields.empty() ? "" : "}", "}");
}

}  // namespace muster
