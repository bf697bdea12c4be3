// Rules on mixture-of-experts layers (reference 14.4, 14.5).
#include "absl/strings/str_cat.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

// Widths that expert tensor parallelism (and, for the shared expert, tensor parallelism) divides.
void CheckExpertSplits(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  const int64_t etp = ExpertTensorSize(spec.parallel);
  const int64_t tp = spec.parallel.tensor_model_parallel_size;
  const int64_t ffn = model.moe_ffn_hidden_size.value_or(FfnHiddenSize(model));
  if (report->Good({"model.moe_ffn_hidden_size", "model.ffn_hidden_size", "model.hidden_size",
                    "model.swiglu"}) &&
      ffn % etp != 0) {
    report->Add("model.moe_ffn_hidden_size",
                absl::StrCat("is ", ffn,
                             " for each expert; it must be a multiple of "
                             "parallel.expert_tensor_parallel_size=",
                             etp));
  }
  const int64_t shared = model.moe_shared_expert_intermediate_size.value_or(0);
  if (report->Good({"model.moe_shared_expert_intermediate_size"}) && shared % tp != 0) {
    report->Add("model.moe_shared_expert_intermediate_size",
                absl::StrCat("must be a multiple of parallel.tensor_model_parallel_size=", tp));
  }
}

}  // namespace

void CheckExperts(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  const ParallelSpec& parallel = spec.parallel;
  if (!report->Good({"model.num_experts", "parallel.expert_model_parallel_size"})) return;
  if (!model.num_experts) {
    if (parallel.expert_model_parallel_size > 1) {
      report->Add("parallel.expert_model_parallel_size", "needs model.num_experts");
    }
    return;
  }
  if (*model.num_experts % parallel.expert_model_parallel_size != 0) {
    report->Add("model.num_experts",
                absl::StrCat("must be a multiple of parallel.expert_model_parallel_size=",
                             parallel.expert_model_parallel_size));
  }
  if (report->Good({"model.moe_router_topk"}) && model.moe_router_topk > *model.num_experts) {
    report->Add("model.moe_router_topk",
                absl::StrCat("must be at most model.num_experts=", *model.num_experts));
  }
  const bool sinkhorn = model.moe_router_load_balancing_type.front() == "sinkhorn";
  if (report->Good({"model.moe_router_topk", "model.moe_router_score_function",
                    "model.moe_router_load_balancing_type"}) &&
      model.moe_router_topk == 1 && model.moe_router_score_function == "softmax" &&
      !model.moe_router_pre_softmax && !sinkhorn) {
    report->Add("model.moe_router_pre_softmax",
                "is required with moe_router_topk=1 and softmax: over one expert it is always 1");
  }
  if (report->Good({"model.moe_aux_loss_coeff", "model.moe_router_load_balancing_type"}) &&
      sinkhorn && model.moe_aux_loss_coeff.front() != 0) {
    report->Add("model.moe_aux_loss_coeff", "must be 0 with sinkhorn, which has no such loss");
  }
  if (report->Good({"model.moe_expert_capacity_factor"}) &&
      model.moe_pad_expert_input_to_capacity && !model.moe_expert_capacity_factor) {
    report->Add("model.moe_pad_expert_input_to_capacity", "needs model.moe_expert_capacity_factor");
  }
  if (!report->Good(
          {"parallel.tensor_model_parallel_size", "parallel.expert_tensor_parallel_size"})) {
    return;
  }
  CheckExpertSplits(spec, report);
  if (model.add_bias_linear && ExpertTensorSize(parallel) > 1) {
    report->Add("model.add_bias_linear",
                "must be false with experts that are split over tensor parallel ranks");
  }
  if (parallel.tensor_model_parallel_size > 1 && !parallel.sequence_parallel) {
    report->Add("parallel.sequence_parallel",
                "must be true to train experts with tensor parallelism");
  }
}

}  // namespace muster
