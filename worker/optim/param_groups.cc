#include "worker/optim/param_groups.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace muster {
namespace {

// The override as the sorted tuple of (setting, value) that orders the groups.
using OverrideTuple = std::vector<std::pair<std::string, double>>;

OverrideTuple TupleOf(const GroupOverride& o) {
  OverrideTuple tuple;
  if (o.max_lr) tuple.emplace_back("max_lr", *o.max_lr);
  if (o.min_lr) tuple.emplace_back("min_lr", *o.min_lr);
  if (o.wd_mult) tuple.emplace_back("wd_mult", *o.wd_mult);
  return tuple;
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
                      " expert=", is_expert, " decoupled_lr=", is_decoupled_lr);
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
                                    .is_decoupled_lr = lr_is_overridden},
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

}  // namespace muster
