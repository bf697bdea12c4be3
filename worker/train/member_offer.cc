#include "worker/train/member_offer.h"

#include <cstdlib>
#include <map>

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "common/base/status.h"
#include "common/control/messages.h"

namespace muster {
namespace {

using nlohmann::json;

// Every bit, and what is not finite.
std::string EncodeNumber(double value) { return absl::StrFormat("%a", value); }
double DecodeNumber(const json& text) {
  return std::strtod(text.get_ref<const std::string&>().c_str(), nullptr);
}
json EncodeNumbers(const std::map<std::string, double>& numbers) {
  json object = json::object();
  for (const auto& [name, value] : numbers) object[name] = EncodeNumber(value);
  return object;
}
std::map<std::string, double> DecodeNumbers(const json& object) {
  std::map<std::string, double> numbers;
  for (const auto& [name, value] : object.items()) numbers[name] = DecodeNumber(value);
  return numbers;
}

json EncodeDirectives(const std::vector<Directive>& directives) {
  json list = json::array();
  for (const Directive& directive : directives)
    list.push_back(Encode(AgentToTrainer(DirectiveMessage{.directive = directive})));
  return list;
}
absl::StatusOr<std::vector<Directive>> DecodeDirectives(const json& list) {
  std::vector<Directive> directives;
  for (const json& text : list) {
    ASSIGN_OR_RETURN(const AgentToTrainer message,
                     DecodeAgentToTrainer(text.get_ref<const std::string&>()));
    const auto* directive = std::get_if<DirectiveMessage>(&message);
    if (directive == nullptr) return absl::InvalidArgumentError("no directive");
    directives.push_back(directive->directive);
  }
  return directives;
}

json EncodeStep(const TrainStepResult& step) {
  json object = {
      {"losses", EncodeNumbers(step.losses)},
      {"side_losses", EncodeNumbers(step.side_losses)},
      {"skipped", step.skipped},
      {"global_batch_size", step.batch.global_batch_size},
      {"running_batch_size", step.batch.running_batch_size},
      {"num_microbatches", step.batch.num_microbatches},
      {"loss_scale", EncodeNumber(step.loss_scale)},
      {"decision", ToVector({.gap_free_directive = step.decision.apply_directives_through,
                             .found_inf = step.decision.found_inf,
                             .norm_too_large = step.decision.norm_too_large,
                             .something_wrong = step.decision.something_wrong,
                             .exit_wish = step.decision.exit_wish,
                             .snapshot_complete = step.decision.snapshots_counted})},
      {"directives", EncodeDirectives(step.directives)}};
  if (step.grad_norm.has_value()) object["grad_norm"] = EncodeNumber(*step.grad_norm);
  if (step.num_zeros.has_value()) object["num_zeros"] = *step.num_zeros;
  return object;
}

absl::StatusOr<TrainStepResult> DecodeStep(const json& object) {
  TrainStepResult step;
  step.losses = DecodeNumbers(object.at("losses"));
  step.side_losses = DecodeNumbers(object.at("side_losses"));
  step.skipped = object.at("skipped");
  step.batch.global_batch_size = object.at("global_batch_size");
  step.batch.running_batch_size = object.at("running_batch_size");
  step.batch.num_microbatches = object.at("num_microbatches");
  step.loss_scale = DecodeNumber(object.at("loss_scale"));
  step.decision = FromReduced(object.at("decision").get<AgreementVector>());
  ASSIGN_OR_RETURN(step.directives, DecodeDirectives(object.at("directives")));
  if (object.contains("grad_norm")) step.grad_norm = DecodeNumber(object["grad_norm"]);
  if (object.contains("num_zeros")) step.num_zeros = object["num_zeros"].get<int64_t>();
  return step;
}

}  // namespace

std::string EncodeStepResult(const TrainStepResult& step) { return EncodeStep(step).dump(); }

absl::StatusOr<TrainStepResult> DecodeStepResult(absl::string_view text) {
  try {
    return DecodeStep(json::parse(text.begin(), text.end()));
  } catch (const json::exception& error) {
    return absl::DataLossError(absl::StrCat("the last step of a state: ", error.what()));
  }
}

std::string EncodeMember(const MemberText& member) {
  json object = {{"offer", EncodeOffer(member.offer)},
                 {"rebinds", member.rebinds},
                 {"reported", member.reported},
                 {"boundary_done", member.boundary_done},
                 {"applied_through", member.applied_through},
                 {"held", EncodeDirectives(member.held)}};
  if (member.step.has_value()) object["step"] = EncodeStep(*member.step);
  if (member.prepared_step.has_value()) object["prepared"] = EncodeStep(*member.prepared_step);
  return object.dump();
}

absl::StatusOr<MemberText> DecodeMember(absl::string_view text) {
  try {
    const json object = json::parse(text.begin(), text.end());
    MemberText member;
    ASSIGN_OR_RETURN(member.offer, DecodeOffer(object.at("offer").get_ref<const std::string&>()));
    member.rebinds = object.at("rebinds");
    member.reported = object.at("reported");
    member.boundary_done = object.at("boundary_done");
    member.applied_through = object.at("applied_through");
    ASSIGN_OR_RETURN(member.held, DecodeDirectives(object.at("held")));
    if (object.contains("step")) {
      ASSIGN_OR_RETURN(member.step, DecodeStep(object["step"]));
    }
    if (object.contains("prepared")) {
      ASSIGN_OR_RETURN(member.prepared_step, DecodeStep(object["prepared"]));
    }
    return member;
  } catch (const json::exception& error) {
    return absl::InvalidArgumentError(
        absl::StrCat("what a member of the new epoch says of itself: ", error.what()));
  }
}

}  // namespace muster
