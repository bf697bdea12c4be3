// Which parameters share a learning rate and a weight decay (reference 7.1; Megatron:
// get_standard_config_overrides and _get_param_groups). No tensor is touched.
//
// Overrides match parameters and change settings of their group. A group's identity is (its
// overrides, expert or not); groups without an override come first, then in order of their override
// tuples, ties in order of appearance.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "worker/comm/communicator.h"
#include "worker/parallel/parameter.h"

namespace muster {

// What an override may set. Members in the order in which they are compared.
struct GroupOverride {
  std::optional<double> max_lr, min_lr;  // not set: the schedule's own
  std::string optimizer;                 // "adam"; empty: the job's own
  std::optional<double> wd_mult;         // factor on the schedule's weight decay; not set: 1
};

struct OverrideRule {
  std::string name;  // for messages
  std::function<bool(const Parameter&)> matches;
  GroupOverride values;
};

// What must be equal for a group's saved step to be given to a group on load.
struct GroupIdentity {
  std::optional<double> max_lr, min_lr;
  double wd_mult = 1;
  bool is_expert = false;
  bool is_decoupled_lr = false;
  std::string optimizer;  // of Muon's jobs: "adam" for what Muon leaves alone; else empty
  bool operator==(const GroupIdentity&) const = default;
  std::string ToString() const;
};

struct ParamGroup {
  GroupIdentity identity;
  bool default_config = true;        // no lr override: its lr is the one that is logged
  std::vector<ParameterPtr> params;  // of this rank, owned or not; empty: only others have some
  // Of the coming step; written by the schedule (Optimizer::SetGroupLr).
  double lr = 0, weight_decay = 0;
  int64_t step = 0;  // updates made
};

struct ParamGroupOptions {
  bool apply_wd_to_qk_layernorm = false;
  std::optional<double> decoupled_lr, decoupled_min_lr;
  // Not empty: the optimizer of all parameters but Muon's matrices (muon_scalar_optimizer).
  std::string scalar_optimizer;
};

// 2-D, and neither embedding nor output layer (reference 7.2).
bool IsMuonManaged(const Parameter& parameter);

// Megatron's: wd_mult 0 for names that end in ".bias" and for 1-D parameters (q/k layernorm weights
// are exempt with apply_wd_to_qk_layernorm); with decoupled_lr its lr range for embedding and
// output; with Muon another optimizer for what is no matrix.
std::vector<OverrideRule> StandardOverrideRules(const ParamGroupOptions& options);

// INVALID_ARGUMENT when two rules give one parameter different values for one setting.
absl::StatusOr<std::vector<ParamGroup>> BuildParamGroups(const std::vector<ParameterPtr>& params,
                                                         const std::vector<OverrideRule>& rules);

// Adds an empty group for each that other members of `world` have, so that all of them hold the
// same list in the same order (reference 6.6: lr and step of a group do not depend on what a rank
// holds). Order as above; of equal overrides, the group of the lower rank comes first. Collective.
absl::Status UniteGroups(Communicator& world, c10::Device device, std::vector<ParamGroup>& groups);

}  // namespace muster
