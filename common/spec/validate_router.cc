// Rules on the router of mixture-of-experts layers (reference 14.4).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

// Types of load balancing and the weights of their losses, which are lists of equal length.
void CheckBalancing(const ModelSpec& model, RuleReport* report) {
  const char* const field = "model.moe_router_load_balancing_type";
  const std::vector<std::string>& types = model.moe_router_load_balancing_type;
  for (size_t i = 0; i < types.size(); ++i) {
    if (types.size() > 1 && (types[i] == "sinkhorn" || types[i] == "none")) {
      report->Add(field, absl::StrCat("lists ", types[i], " among others; it must stand alone"));
      return;
    }
    if (std::count(types.begin(), types.end(), types[i]) > 1) {
      report->Add(field, absl::StrCat("names ", types[i], " twice"));
      return;
    }
  }
  if (!report->Good({"model.moe_aux_loss_coeff"})) return;
  if (model.moe_aux_loss_coeff.size() != types.size()) {
    report->Add("model.moe_aux_loss_coeff",
                absl::StrCat("must have one value for each of the ", types.size(),
                             " in model.moe_router_load_balancing_type"));
    return;
  }
  if (types.front() == "sinkhorn" && model.moe_aux_loss_coeff.front() != 0) {
    report->Add("model.moe_aux_loss_coeff", "must be 0 with sinkhorn, which has no such loss");
  }
}

// Experts in equal groups, of which a token may use the best few.
void CheckGroups(const ModelSpec& model, RuleReport* report) {
  const char* const num_field = "model.moe_router_num_groups";
  const char* const topk_field = "model.moe_router_group_topk";
  if (!report->Good({num_field, topk_field})) return;
  const std::optional<int64_t>& num_groups = model.moe_router_num_groups;
  const std::optional<int64_t>& group_topk = model.moe_router_group_topk;
  if (group_topk && !num_groups) {
    report->Add(topk_field, "needs model.moe_router_num_groups");
    return;
  }
  if (!num_groups) return;
  if (!group_topk) {
    report->Add(topk_field, "is required by model.moe_router_num_groups");
    return;
  }
  const int64_t experts = *model.num_experts, topk = model.moe_router_topk;
  if (experts % *num_groups != 0) {
    report->Add(num_field, absl::StrCat("must divide model.num_experts=", experts));
    return;
  }
  if (*group_topk > *num_groups) {
    report->Add(topk_field, absl::StrCat("must be at most ", num_field, "=", *num_groups));
    return;
  }
  if (!report->Good({"model.moe_router_topk"})) return;
  if (topk < *group_topk) {
    // A group's score is the sum of its best topk / group_topk experts: of none.
    report->Add(topk_field, absl::StrCat("must be at most model.moe_router_topk=", topk));
    return;
  }
  const int64_t kept = experts / *num_groups * *group_topk;
  if (topk > kept && topk <= experts) {
    report->Add("model.moe_router_topk",
                absl::StrCat("must be at most ", kept, ", the experts in the ", *group_topk,
                             " groups that are kept"));
  }
}

void CheckSinkhorn(const ModelSpec& model, RuleReport* report) {
  const struct {
    const char* field;
    bool is_set;
    const char* message;
  } rules[] = {
      {"model.moe_expert_capacity_factor", model.moe_expert_capacity_factor.has_value(),
       "cannot be set with sinkhorn load balancing"},
      {"model.moe_router_num_groups", model.moe_router_num_groups.has_value(),
       "has no place in sinkhorn's choice of experts"},
      {"model.moe_router_enable_expert_bias", model.moe_router_enable_expert_bias,
       "has no place in sinkhorn's choice of experts"},
  };
  for (const auto& rule : rules) {
    if (rule.is_set && report->Good({rule.field})) report->Add(rule.field, rule.message);
  }
}

}  // namespace

void CheckRouter(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  if (!model.num_experts || !report->Good({"model.num_experts"})) return;
  if (report->Good({"model.moe_router_topk"}) && model.moe_router_topk > *model.num_experts) {
    report->Add("model.moe_router_topk",
                absl::StrCat("must be at most model.num_experts=", *model.num_experts));
  }
  if (!report->Good({"model.moe_router_load_balancing_type"})) return;
  CheckBalancing(model, report);
  if (model.moe_router_load_balancing_type.front() == "sinkhorn") {
    CheckSinkhorn(model, report);
    return;
  }
  CheckGroups(model, report);
  if (report->Good({"model.moe_router_topk", "model.moe_router_score_function"}) &&
      model.moe_router_topk == 1 && model.moe_router_score_function == "softmax" &&
      !model.moe_router_pre_softmax) {
    report->Add(
        "model.moe_router_pre_softmax",
        "must be true with moe_router_topk=1 and softmax: over one expert that is always 1");
  }
  if (report->Good({"model.moe_router_score_function"}) && model.moe_router_enable_expert_bias &&
      model.moe_router_score_function != "sigmoid") {
    report->Add("model.moe_router_enable_expert_bias",
                "needs model.moe_router_score_function=\"sigmoid\"");
  }
}

}  // namespace muster
