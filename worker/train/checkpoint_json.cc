#include "worker/train/checkpoint_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using nlohmann::json;

template <typename T>
json OptionalToJson(const std::optional<T>& value) {
  return value.has_value() ? json(*value) : json(nullptr);
}

std::optional<double> OptionalDouble(const json& value) {
  return value.is_null() ? std::nullopt : std::optional<double>(value.get<double>());
}

json ToJson(const Progress& progress) {
  return {{"iteration", progress.iteration},
          {"consumed_train_samples", progress.consumed_train_samples},
          {"consumed_valid_samples", progress.consumed_valid_samples},
          {"skipped_train_samples", progress.skipped_train_samples},
          {"num_floating_point_operations_so_far", progress.floating_point_operations_so_far}};
}

Progress ProgressFrom(const json& value) {
  Progress progress;
  progress.iteration = value.at("iteration");
  progress.consumed_train_samples = value.at("consumed_train_samples");
  progress.consumed_valid_samples = value.at("consumed_valid_samples");
  progress.skipped_train_samples = value.at("skipped_train_samples");
  progress.floating_point_operations_so_far = value.at("num_floating_point_operations_so_far");
  return progress;
}

json ToJson(const LrScheduleState& state) {
  return {{"max_lr", state.max_lr},
          {"min_lr", state.min_lr},
          {"lr_warmup_steps", state.lr_warmup_steps},
          {"lr_decay_steps", state.lr_decay_steps},
          {"num_steps", state.num_steps},
          {"lr_decay_style", static_cast<int>(state.lr_decay_style)},
          {"start_wd", state.start_wd},
          {"end_wd", state.end_wd},
          {"wd_incr_steps", state.wd_incr_steps},
          {"wd_incr_style", static_cast<int>(state.wd_incr_style)}};
}

LrScheduleState LrScheduleFrom(const json& value) {
  LrScheduleState state;
  state.max_lr = value.at("max_lr");
  state.min_lr = value.at("min_lr");
  state.lr_warmup_steps = value.at("lr_warmup_steps");
  state.lr_decay_steps = value.at("lr_decay_steps");
  state.num_steps = value.at("num_steps");
  state.lr_decay_style = static_cast<LrDecayStyle>(value.at("lr_decay_style").get<int>());
  state.start_wd = value.at("start_wd");
  state.end_wd = value.at("end_wd");
  state.wd_incr_steps = value.at("wd_incr_steps");
  state.wd_incr_style = static_cast<WeightDecayStyle>(value.at("wd_incr_style").get<int>());
  return state;
}

json ToJson(const OptimizerGroupState& group) {
  return {{"max_lr", OptionalToJson(group.identity.max_lr)},
          {"min_lr", OptionalToJson(group.identity.min_lr)},
          {"wd_mult", group.identity.wd_mult},
          {"is_expert_parallel", group.identity.is_expert},
          {"is_decoupled_lr", group.identity.is_decoupled_lr},
          {"optimizer", group.identity.optimizer},
          {"step", group.step}};
}

OptimizerGroupState GroupFrom(const json& value) {
  OptimizerGroupState group;
  group.identity.max_lr = OptionalDouble(value.at("max_lr"));
  group.identity.min_lr = OptionalDouble(value.at("min_lr"));
  group.identity.wd_mult = value.at("wd_mult");
  group.identity.is_expert = value.at("is_expert_parallel");
  group.identity.is_decoupled_lr = value.at("is_decoupled_lr");
  group.identity.optimizer = value.value("optimizer", "");  // not in older checkpoints
  group.step = value.at("step");
  return group;
}

absl::Status Damaged(const json::exception& error) {
  return absl::DataLossError(absl::StrCat("the checkpoint's state cannot be read: ", error.what()));
}

}  // namespace

std::string EncodeCommonState(const CommonCheckpointState& state) {
  json groups = json::array();
  for (const OptimizerGroupState& group : state.optimizer_groups) groups.push_back(ToJson(group));
  json out = {
      {"spec", state.spec_json},
      {"progress", ToJson(state.progress)},
      {"lr_schedule", state.lr_schedule ? ToJson(*state.lr_schedule) : json(nullptr)},
      {"loss_scaler", state.loss_scaler
                          ? json{{"scale", state.loss_scaler->scale},
                                 {"growth_tracker", state.loss_scaler->growth_tracker},
                                 {"hysteresis_tracker", state.loss_scaler->hysteresis_tracker}}
                          : json(nullptr)},
      {"optimizer_groups", std::move(groups)}};
  if (!state.rerun_json.empty()) out["rerun"] = json::parse(state.rerun_json);
  return out.dump();
}

absl::StatusOr<CommonCheckpointState> DecodeCommonState(const std::string& text) {
  try {
    const json value = json::parse(text);
    CommonCheckpointState state;
    state.spec_json = value.at("spec");
    state.progress = ProgressFrom(value.at("progress"));
    if (const json& schedule = value.at("lr_schedule"); !schedule.is_null())
      state.lr_schedule = LrScheduleFrom(schedule);
    if (const json& scaler = value.at("loss_scaler"); !scaler.is_null()) {
      state.loss_scaler = LossScalerState{.scale = scaler.at("scale"),
                                          .growth_tracker = scaler.at("growth_tracker"),
                                          .hysteresis_tracker = scaler.at("hysteresis_tracker")};
    }
    for (const json& group : value.at("optimizer_groups"))
      state.optimizer_groups.push_back(GroupFrom(group));
    if (auto rerun = value.find("rerun"); rerun != value.end())  // not in older checkpoints
      state.rerun_json = rerun->dump();
    return state;
  } catch (const json::exception& error) {
    return Damaged(error);
  }
}

std::string EncodeRngState(const std::map<std::string, std::string>& regions,
                           const std::string& rerun_json) {
  json rng = json::object();
  for (const auto& [name, bytes] : regions) rng[name] = absl::BytesToHexString(bytes);
  json out{{"rng", std::move(rng)}};
  if (!rerun_json.empty()) out["rerun"] = json::parse(rerun_json);
  return out.dump();
}

absl::StatusOr<std::string> DecodeRankRerun(const std::string& text) {
  try {
    const json value = json::parse(text);
    const auto rerun = value.find("rerun");
    return rerun == value.end() ? std::string() : rerun->dump();
  } catch (const json::exception& error) {
    return Damaged(error);
  }
}

absl::StatusOr<std::map<std::string, std::string>> DecodeRngState(const std::string& text) {
  try {
    const json value = json::parse(text);  // outlives the loop over its members
    std::map<std::string, std::string> regions;
    for (const auto& [name, hex] : value.at("rng").items()) {
      regions[name] = absl::HexStringToBytes(hex.get<std::string>());
    }
    return regions;
  } catch (const json::exception& error) {
    return Damaged(error);
  }
}

}  // namespace muster
