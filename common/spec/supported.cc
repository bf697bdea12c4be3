#include "common/spec/supported.h"

#include "common/spec/rule_report.h"

namespace muster {
namespace {

struct Feature {
  const char* field;
  bool (*is_used)(const JobSpec&);
  const char* instead;  // what to do
};

// A row goes when its engine comes.
const Feature kMissing[] = {
    {"parallel.expert_model_parallel_size",
     [](const JobSpec& s) { return s.parallel.expert_model_parallel_size > 1; }, "set it to 1"},
    {"parallel.expert_tensor_parallel_size",
     [](const JobSpec& s) { return s.parallel.expert_tensor_parallel_size.value_or(1) > 1; },
     "leave it out"},
    {"model.num_experts", [](const JobSpec& s) { return s.model.num_experts.has_value(); },
     "leave it out for dense layers"},
    {"parallel.use_torch_fsdp2", [](const JobSpec& s) { return s.parallel.use_torch_fsdp2; },
     "set it to false"},
    {"parallel.use_megatron_fsdp", [](const JobSpec& s) { return s.parallel.use_megatron_fsdp; },
     "set it to false"},
    {"data.tokenizer_type", [](const JobSpec& s) { return s.data.tokenizer_type != "byte"; },
     "use byte"},
    {"checkpoint.async_save", [](const JobSpec& s) { return s.checkpoint.async_save; },
     "set it to false"},
    {"recovery.elastic", [](const JobSpec& s) { return s.recovery.elastic; }, "set it to false"},
    {"rerun.error_injection_rate",
     [](const JobSpec& s) { return s.rerun.error_injection_rate > 0; }, "set it to 0"},
};

}  // namespace

std::vector<SpecProblem> UnsupportedFeatures(const JobSpec& spec) {
  RuleReport report(spec, {});
  for (const Feature& feature : kMissing) {
    if (!feature.is_used(spec)) continue;
    report.Add(feature.field,
               std::string("is not supported by this version's trainer; ") + feature.instead);
  }
  return report.Take();
}

}  // namespace muster
