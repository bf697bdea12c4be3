// Rules on mixture-of-experts layers, their experts and dispatchers (reference 14.4, 14.5).
#include "absl/strings/str_cat.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

// Without experts: what is of no use.
void CheckNoExperts(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  const struct {
    const char* field;
    bool is_set;
  } fields[] = {
      {"parallel.expert_model_parallel_size", spec.parallel.expert_model_parallel_size > 1},
      {"model.moe_ffn_hidden_size", model.moe_ffn_hidden_size.has_value()},
      {"model.moe_shared_expert_intermediate_size",
       model.moe_shared_expert_intermediate_size.has_value()},
  };
  for (const auto& field : fields) {
    if (field.is_set) report->Add(field.field, "needs model.num_experts");
  }
}

// Every n-th layer, or a flag a layer.
void CheckLayers(const ModelSpec& model, RuleReport* report) {
  const char* const field = "model.moe_layer_freq";
  const std::vector<int64_t>& freq = model.moe_layer_freq;
  if (!report->Good({field, "model.num_layers"})) return;
  if (freq.size() == 1) {
    if (freq[0] < 1 && model.num_layers > 1) report->Add(field, "must be at least 1");
    return;
  }
  if (static_cast<int64_t>(freq.size()) != model.num_layers) {
    report->Add(field, absl::StrCat("has ", freq.size(),
                                    " values; it must have one, or one for each of "
                                    "model.num_layers=",
                                    model.num_layers));
    return;
  }
  for (const int64_t flag : freq) {
    if (flag == 0 || flag == 1) continue;
    report->Add(field, absl::StrCat("has the item ", flag,
                                    "; a list has 1 for a layer with experts and 0 for a dense "
                                    "one"));
    return;
  }
}

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

void CheckSharedExpert(const ModelSpec& model, RuleReport* report) {
  const bool has_shared = model.moe_shared_expert_intermediate_size.has_value();
  if (!report->Good({"model.moe_shared_expert_intermediate_size"})) return;
  if (model.moe_shared_expert_gate && !has_shared) {
    report->Add("model.moe_shared_expert_gate", "needs model.moe_shared_expert_intermediate_size");
  }
  if (!model.moe_shared_expert_overlap) return;
  if (!has_shared) {
    report->Add("model.moe_shared_expert_overlap",
                "needs model.moe_shared_expert_intermediate_size");
  } else if (report->Good({"model.moe_token_dispatcher_type"}) &&
             model.moe_token_dispatcher_type != "alltoall") {
    report->Add("model.moe_shared_expert_overlap",
                "needs model.moe_token_dispatcher_type=\"alltoall\"");
  }
}

}  // namespace

void CheckExperts(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  const ParallelSpec& parallel = spec.parallel;
  if (!report->Good({"model.num_experts", "parallel.expert_model_parallel_size"})) return;
  if (!model.num_experts) {
    CheckNoExperts(spec, report);
    return;
  }
  if (*model.num_experts % parallel.expert_model_parallel_size != 0) {
    report->Add("model.num_experts",
                absl::StrCat("must be a multiple of parallel.expert_model_parallel_size=",
                             parallel.expert_model_parallel_size));
  }
  CheckLayers(model, report);
  CheckSharedExpert(model, report);
  if (report->Good({"model.moe_expert_capacity_factor"}) &&
      model.moe_pad_expert_input_to_capacity && !model.moe_expert_capacity_factor) {
    report->Add("model.moe_pad_expert_input_to_capacity", "needs model.moe_expert_capacity_factor");
  }
  if (report->Good({"model.moe_router_topk"}) && model.moe_apply_probs_on_input &&
      model.moe_router_topk != 1) {
    report->Add("model.moe_apply_probs_on_input",
                absl::StrCat("needs model.moe_router_topk=1, which is ", model.moe_router_topk));
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
