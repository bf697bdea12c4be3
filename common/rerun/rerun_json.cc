#include "common/rerun/rerun_json.h"

#include <algorithm>
#include <cmath>

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

using nlohmann::json;

// JSON has no NaN and no infinity.
json Number(double value) {
  if (std::isfinite(value)) return value;
  return absl::StrCat(value);  // "nan", "inf", "-inf"
}

double NumberFrom(const json& value) {
  if (!value.is_string()) return value.get<double>();
  double number = 0;
  if (!absl::SimpleAtod(value.get<std::string>(), &number)) return std::nan("");
  return number;
}

absl::Status Damaged(const std::string& what) {
  return absl::DataLossError(absl::StrCat("the rerun state cannot be read: ", what));
}

json ToJson(const LargeValues& values) {
  json out = json::object();
  for (const auto& [context, stats] : values)
    out[context] = {{"count", stats.num_seen}, {"max", Number(stats.max_abs)}};
  return out;
}

LargeValues LargeValuesFrom(const json& value) {
  LargeValues values;
  for (const auto& [context, stats] : value.items()) {
    values[context] = {.num_seen = stats.at("count"), .max_abs = NumberFrom(stats.at("max"))};
  }
  return values;
}

json InjectorToJson(const RerunRankState& state) {
  json pending = nullptr;
  if (state.injection_pending.has_value())
    pending = std::string(InjectedErrorName(*state.injection_pending));
  return {{"rate", state.injection_rate},
          {"type", std::string(InjectedErrorName(state.injection_type))},
          {"pending_type", std::move(pending)}};
}

absl::Status InjectorFromJson(const json& value, RerunRankState* state) {
  state->injection_rate = value.at("rate");
  ASSIGN_OR_RETURN(state->injection_type, ParseInjectedError(value.at("type").get<std::string>()));
  if (const json& pending = value.at("pending_type"); !pending.is_null()) {
    ASSIGN_OR_RETURN(state->injection_pending, ParseInjectedError(pending.get<std::string>()));
  }
  return absl::OkStatus();
}

}  // namespace

std::string EncodeRerunCommon(const RerunCommonState& state) {
  return json{{"mode", std::string(RerunModeName(state.mode))},
              {"state", static_cast<int>(state.state)},
              {"current_iteration", state.current_iteration}}
      .dump();
}

std::string EncodeRerunRank(const RerunRankState& state,
                            const std::vector<ReplayState>& iterators) {
  json out = {{"rerun_requested", state.flags.rerun != 0},
              {"checkpoint_requested", state.flags.checkpoint != 0},
              {"restart_again_requested", state.flags.restart_again != 0},
              {"continue_requested", state.flags.keep_going != 0},
              {"error_injector", InjectorToJson(state)},
              {"failed_validation_call", nullptr},
              {"initial_result", Number(state.initial_result)},
              {"suspicious_node", state.suspicious.node},
              {"suspicious_device", state.suspicious.device},
              {"data_iterators", nullptr}};
  if (const std::optional<ValidationCall>& call = state.failed_call; call.has_value()) {
    out["failed_validation_call"] = {
        {"message", call->message}, {"rank", call->rank}, {"sequence", call->sequence}};
  }
  for (const ReplayState& iterator : iterators) {
    out["data_iterators"].push_back({{"saved_microbatches", iterator.saved_microbatches},
                                     {"replaying", iterator.replaying},
                                     {"replay_position", iterator.replay_position}});
  }
  out["large_values"] = ToJson(state.large_values);
  return out.dump();
}

std::string EncodeLargeValues(const LargeValues& values) { return ToJson(values).dump(); }

absl::StatusOr<LargeValues> MergeLargeValues(const std::vector<std::string>& texts) {
  try {
    LargeValues merged;
    for (const std::string& text : texts) {
      for (const auto& [context, stats] : LargeValuesFrom(json::parse(text))) {
        SpikeDetector::Stats& all = merged[context];
        all.num_seen = std::max(all.num_seen, stats.num_seen);
        all.max_abs = std::max(all.max_abs, stats.max_abs);
      }
    }
    return merged;
  } catch (const json::exception& error) {
    return Damaged(error.what());
  }
}

absl::StatusOr<RerunCommonState> DecodeRerunCommon(absl::string_view text) {
  try {
    const json value = json::parse(text.begin(), text.end());
    RerunCommonState state;
    ASSIGN_OR_RETURN(state.mode, ParseRerunMode(value.at("mode").get<std::string>()));
    const int number = value.at("state");
    if (number < 0 || number > static_cast<int>(RerunState::kRerunningAgainFromCheckpoint))
      return Damaged(absl::StrCat("state=", number, ": must be 0 to 5"));
    state.state = static_cast<RerunState>(number);
    state.current_iteration = value.at("current_iteration");
    return state;
  } catch (const json::exception& error) {
    return Damaged(error.what());
  }
}

absl::StatusOr<RerunRankState> DecodeRerunRank(absl::string_view text) {
  try {
    const json value = json::parse(text.begin(), text.end());
    RerunRankState state;
    state.flags = {.rerun = value.at("rerun_requested").get<bool>(),
                   .checkpoint = value.at("checkpoint_requested").get<bool>(),
                   .restart_again = value.at("restart_again_requested").get<bool>(),
                   .keep_going = value.at("continue_requested").get<bool>()};
    RETURN_IF_ERROR(InjectorFromJson(value.at("error_injector"), &state));
    if (const json& call = value.at("failed_validation_call"); !call.is_null()) {
      state.failed_call = ValidationCall{call.at("message"), call.at("rank"), call.at("sequence")};
    }
    state.initial_result = NumberFrom(value.at("initial_result"));
    state.suspicious = {value.at("suspicious_node"), value.at("suspicious_device")};
    state.large_values = LargeValuesFrom(value.at("large_values"));
    return state;
  } catch (const json::exception& error) {
    return Damaged(error.what());
  }
}

}  // namespace muster
