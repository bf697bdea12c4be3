#include "worker/optim/param_groups.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>
#include <variant>

#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/zeros.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

// The override as the sorted tuple of (setting, value) that orders the groups.
using OverrideTuple = std::vector<std::pair<std::string, std::variant<double, std::string>>>;

OverrideTuple TupleOf(const GroupOverride& o) {
  OverrideTuple tuple;
  if (o.max_lr) tuple.emplace_back("max_lr", *o.max_lr);
  if (o.min_lr) tuple.emplace_back("min_lr", *o.min_lr);
  if (!o.optimizer.empty()) tuple.emplace_back("optimizer", o.optimizer);
  if (o.wd_mult) tuple.emplace_back("wd_mult", *o.wd_mult);
  return tuple;
}

// A multiplier of one overrides nothing.
OverrideTuple TupleOf(const GroupIdentity& id) {
  GroupOverride o{.max_lr = id.max_lr, .min_lr = id.min_lr, .optimizer = id.optimizer};
  if (id.wd_mult != 1) o.wd_mult = id.wd_mult;
  return TupleOf(o);
}

absl::Status Merge(std::optional<double> from, const char* setting, const std::string& rule,
                   const Parameter& parameter, std::optional<double>& into) {
  if (!from) return absl::OkStatus();
  if (into && *into != *from) {
    return absl::InvalidArgumentError(absl::StrCat(
        "override rule ", rule, " sets ", setting, "=", *from, " for parameter ", parameter.name,
        ", another rule ", *into, ": make them equal, or the rules disjoint"));
  }
  into = from;
  return absl::OkStatus();
}

}  // namespace

std::string GroupIdentity::ToString() const {
  auto text = [](std::optional<double> v) { return v ? absl::StrCat(*v) : "default"; };
  return absl::StrCat("max_lr=", text(max_lr), " min_lr=", text(min_lr), " wd_mult=", wd_mult,
                      " expert=", is_expert, " decoupled_lr=", is_decoupled_lr,
                      optimizer.empty() ? "" : " optimizer=", optimizer);
}

bool IsMuonManaged(const Parameter& parameter) {
  return parameter.data.dim() == 2 && !parameter.is_embedding_or_output_parameter;
}

std::vector<OverrideRule> StandardOverrideRules(const ParamGroupOptions& options) {
  std::vector<OverrideRule> rules;
  rules.push_back({.name = "no weight decay on biases and 1-D parameters",
                   .matches =
                       [exempt_qk = options.apply_wd_to_qk_layernorm](const Parameter& p) {
                         if (exempt_qk && p.is_qk_layernorm && !absl::EndsWith(p.name, ".bias"))
                           return false;
                         return absl::EndsWith(p.name, ".bias") || p.data.dim() == 1;
                       },
                   .values = {.wd_mult = 0.0}});
  if (options.decoupled_lr) {
    rules.push_back(
        {.name = "decoupled learning rate",
         .matches = [](const Parameter& p) { return p.is_embedding_or_output_parameter; },
         .values = {.max_lr = options.decoupled_lr, .min_lr = options.decoupled_min_lr}});
  }
  if (!options.scalar_optimizer.empty()) {
    rules.push_back({.name = "no Muon for what is no matrix, for embedding and output",
                     .matches = [](const Parameter& p) { return !IsMuonManaged(p); },
                     .values = {.optimizer = options.scalar_optimizer}});
  }
  return rules;
}

absl::StatusOr<std::vector<ParamGroup>> BuildParamGroups(const std::vector<ParameterPtr>& params,
                                                         const std::vector<OverrideRule>& rules) {
  struct Entry {
    OverrideTuple tuple;
    ParamGroup group;
  };
  std::vector<Entry> entries;  // in order of appearance
  for (const ParameterPtr& p : params) {
    GroupOverride merged;
    for (const OverrideRule& rule : rules) {
      if (!rule.matches(*p)) continue;
      RETURN_IF_ERROR(Merge(rule.values.max_lr, "max_lr", rule.name, *p, merged.max_lr));
      RETURN_IF_ERROR(Merge(rule.values.min_lr, "min_lr", rule.name, *p, merged.min_lr));
      RETURN_IF_ERROR(Merge(rule.values.wd_mult, "wd_mult", rule.name, *p, merged.wd_mult));
      if (!rule.values.optimizer.empty()) merged.optimizer = rule.values.optimizer;
    }
    const OverrideTuple tuple = TupleOf(merged);
    const bool is_expert = !p->allreduce;
    auto found = std::find_if(entries.begin(), entries.end(), [&](const Entry& e) {
      return e.tuple == tuple && e.group.identity.is_expert == is_expert;
    });
    if (found == entries.end()) {
      const bool lr_is_overridden = merged.max_lr || merged.min_lr;
      ParamGroup group{.identity = {.max_lr = merged.max_lr,
                                    .min_lr = merged.min_lr,
                                    .wd_mult = merged.wd_mult.value_or(1.0),
                                    .is_expert = is_expert,
                                    .is_decoupled_lr = lr_is_overridden,
                                    .optimizer = merged.optimizer},
                       .default_config = !lr_is_overridden};
      entries.push_back({tuple, std::move(group)});
      found = entries.end() - 1;
    }
    found->group.params.push_back(p);
  }
  // The empty tuple sorts first.
  std::stable_sort(entries.begin(), entries.end(),
                   [](const Entry& a, const Entry& b) { return a.tuple < b.tuple; });
  std::vector<ParamGroup> groups;
  for (Entry& entry : entries) groups.push_back(std::move(entry.group));
  return groups;
}

namespace {

// Identities as rows of numbers, for the exchange. NaN: not set.
constexpr int64_t kColumns = 6;
const char* const kOptimizers[] = {"", "adam", "sgd"};

void Encode(const GroupIdentity& id, double* row) {
  const double unset = std::numeric_limits<double>::quiet_NaN();
  const auto* name = std::find(std::begin(kOptimizers), std::end(kOptimizers), id.optimizer);
  MUSTER_CHECK_MSG(name != std::end(kOptimizers), id.optimizer);
  row[0] = id.max_lr.value_or(unset);
  row[1] = id.min_lr.value_or(unset);
  row[2] = id.wd_mult;
  row[3] = id.is_expert;
  row[4] = id.is_decoupled_lr;
  row[5] = static_cast<double>(name - std::begin(kOptimizers));
}

GroupIdentity Decode(const double* row) {
  auto optional = [](double v) { return std::isnan(v) ? std::nullopt : std::optional(v); };
  return {.max_lr = optional(row[0]),
          .min_lr = optional(row[1]),
          .wd_mult = row[2],
          .is_expert = row[3] != 0,
          .is_decoupled_lr = row[4] != 0,
          .optimizer = kOptimizers[static_cast<int>(row[5])]};
}

// The identities of every member's groups, in rank order.
absl::StatusOr<std::vector<GroupIdentity>> GatherIdentities(Communicator& world, c10::Device device,
                                                            const std::vector<ParamGroup>& groups) {
  at::Tensor most = at::full({1}, static_cast<int64_t>(groups.size()),
                             at::TensorOptions().dtype(at::kLong).device(device));
  RETURN_IF_ERROR(world.AllReduce(most, ReduceOp::kMax)->Wait());
  const int64_t rows = most.cpu().const_data_ptr<int64_t>()[0];
  // A last column says whether the row holds a group.
  at::Tensor mine = at::zeros({rows, kColumns + 1}, at::kDouble);
  for (size_t g = 0; g < groups.size(); ++g) {
    double* row = mine.mutable_data_ptr<double>() + static_cast<int64_t>(g) * (kColumns + 1);
    Encode(groups[g].identity, row);
    row[kColumns] = 1;
  }
  at::Tensor all = at::empty({world.size() * rows, kColumns + 1},
                             at::TensorOptions().dtype(at::kDouble).device(device));
  RETURN_IF_ERROR(world.AllGather(all, mine.to(device))->Wait());
  all = all.cpu();
  std::vector<GroupIdentity> identities;
  for (int64_t i = 0; i < all.size(0); ++i) {
    const double* row = all.const_data_ptr<double>() + i * (kColumns + 1);
    if (row[kColumns] == 1) identities.push_back(Decode(row));
  }
  return identities;
}

}  // namespace

absl::Status UniteGroups(Communicator& world, c10::Device device, std::vector<ParamGroup>& groups) {
  if (world.size() == 1) return absl::OkStatus();
  absl::StatusOr<std::vector<GroupIdentity>> identities = GatherIdentities(world, device, groups);
  RETURN_IF_ERROR(Annotate(identities.status(), "uniting parameter groups"));
  std::vector<ParamGroup> united;
  for (const GroupIdentity& id : *identities) {
    auto has_id = [&](const ParamGroup& group) { return group.identity == id; };
    if (std::any_of(united.begin(), united.end(), has_id)) continue;
    const auto own = std::find_if(groups.begin(), groups.end(), has_id);
    united.push_back(own != groups.end()
                         ? *own
                         : ParamGroup{.identity = id, .default_config = !id.max_lr && !id.min_lr});
  }
  std::stable_sort(united.begin(), united.end(), [](const ParamGroup& a, const ParamGroup& b) {
    return TupleOf(a.identity) < TupleOf(b.identity);
  });
  groups = std::move(united);
  return absl::OkStatus();
}

}  // namespace muster
