#include "common/control/device_check.h"

#include "absl/strings/str_cat.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

// Calls it with each field's name and place.
template <class Check, class Function>
void Visit(Check& check, Function function) {
  function("device", check.device);
  function("kind", check.kind);
  function("serial", check.serial);
  function("fingerprint", check.fingerprint);
  function("copy_gb_per_s", check.copy_gb_per_s);
  function("elapsed_ms", check.elapsed_ms);
  function("error", check.error);
}

void Read(const Json& json, std::string& value, bool& good) {
  good = json.is_string();
  if (good) value = json.get_ref<const std::string&>();
}
void Read(const Json& json, double& value, bool& good) {
  good = json.is_number();
  if (good) value = json.get<double>();
}

}  // namespace

std::string Encode(const DeviceCheck& check) {
  Json json = Json::object();
  Visit(check, [&](const char* name, const auto& value) { json[name] = value; });
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

absl::StatusOr<DeviceCheck> DecodeDeviceCheck(absl::string_view line) {
  const Json json = Json::parse(line.begin(), line.end(), nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) {
    return absl::InvalidArgumentError(
        absl::StrCat("a device check of ", line.size(), " bytes is not a JSON object"));
  }
  DeviceCheck check;
  std::string problem;
  Visit(check, [&](const char* name, auto& value) {
    const auto found = json.find(name);
    if (found == json.end()) return;
    bool good = true;
    Read(*found, value, good);
    if (!good && problem.empty()) problem = absl::StrCat("field ", name, " has the wrong type");
  });
  if (problem.empty() && check.error.empty() && check.fingerprint.empty()) {
    problem = "it has neither a fingerprint nor an error";
  }
  if (!problem.empty()) return absl::InvalidArgumentError(absl::StrCat("device check: ", problem));
  return check;
}

}  // namespace muster
