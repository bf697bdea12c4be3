// Rules on pipeline stages: layers, virtual stages, microbatches, layouts.
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "common/spec/pipeline_layout.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

// L' layers over pp stages, evenly or with a first and last stage of their own (reference 2.1).
// Returns layers of a middle stage, 0 after a report.
int64_t CheckLayerSplit(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const int64_t pp = parallel.pipeline_model_parallel_size;
  const int64_t layers = spec.model.num_layers;
  const int64_t extra = (parallel.account_for_embedding_in_pipeline_split ? 1 : 0) +
                        (parallel.account_for_loss_in_pipeline_split ? 1 : 0);
  const std::optional<int64_t>& first = parallel.decoder_first_pipeline_num_layers;
  const std::optional<int64_t>& last = parallel.decoder_last_pipeline_num_layers;
  if (!first && !last) {
    if ((layers + extra) % pp == 0) return (layers + extra) / pp;
    report->Add("model.num_layers",
                absl::StrCat(extra != 0 ? absl::StrCat("plus ", extra, " accounted for ") : "",
                             "must be a multiple of parallel.pipeline_model_parallel_size=", pp,
                             ", or set an uneven split"));
    return 0;
  }
  const char* const field = first ? "parallel.decoder_first_pipeline_num_layers"
                                  : "parallel.decoder_last_pipeline_num_layers";
  if (extra != 0) {
    report->Add(field,
                "excludes account_for_embedding_in_pipeline_split and "
                "account_for_loss_in_pipeline_split");
    return 0;
  }
  const int64_t middle_stages = pp - (first ? 1 : 0) - (last ? 1 : 0);
  const int64_t middle = layers - first.value_or(0) - last.value_or(0);
  if (middle < 0 || middle_stages < 0 || (middle_stages == 0 && middle != 0) ||
      (middle_stages > 0 && middle % middle_stages != 0)) {
    report->Add(field, absl::StrCat("leaves ", middle, " of model.num_layers=", layers, " for ",
                                    middle_stages, " other stages; it must split evenly"));
    return 0;
  }
  return middle_stages == 0 ? 0 : middle / middle_stages;
}

// Chunks of a pipeline rank; 0 after a report. `per_stage`: 0 when unknown.
int64_t CheckVirtualStages(const JobSpec& spec, int64_t per_stage, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const int64_t pp = parallel.pipeline_model_parallel_size;
  const char* const by_size = "parallel.num_layers_per_virtual_pipeline_stage";
  const char* const by_count = "parallel.virtual_pipeline_model_parallel_size";
  const bool uneven = parallel.decoder_first_pipeline_num_layers.has_value() ||
                      parallel.decoder_last_pipeline_num_layers.has_value();
  int64_t chunks = parallel.virtual_pipeline_model_parallel_size.value_or(1);
  if (parallel.num_layers_per_virtual_pipeline_stage) {
    const int64_t size = *parallel.num_layers_per_virtual_pipeline_stage;
    if (uneven) {
      report->Add(by_size,
                  "excludes decoder_first_pipeline_num_layers and "
                  "decoder_last_pipeline_num_layers; use "
                  "virtual_pipeline_model_parallel_size");
      return 0;
    }
    if (per_stage == 0) return 0;
    if (per_stage % size != 0) {
      report->Add(by_size, absl::StrCat("must divide a stage's ", per_stage, " layers"));
      return 0;
    }
    chunks = per_stage / size;
  }
  const char* const field = parallel.num_layers_per_virtual_pipeline_stage ? by_size : by_count;
  if (chunks > 1 && pp < 2) {
    report->Add(field, "needs parallel.pipeline_model_parallel_size of at least 2");
    return 0;
  }
  for (const int64_t layers : {per_stage, parallel.decoder_first_pipeline_num_layers.value_or(0),
                               parallel.decoder_last_pipeline_num_layers.value_or(0)}) {
    if (layers % chunks == 0) continue;
    report->Add(field, absl::StrCat("must divide every stage's layers; one has ", layers));
    return 0;
  }
  return chunks;
}

// The interleaved schedule's own needs (reference 4.3), where the number of microbatches is known.
void CheckMicrobatchGroups(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const TrainingSpec& training = spec.training;
  const int64_t dp = DataParallelSize(spec, *report);
  const char* const field = "parallel.microbatch_group_size_per_virtual_pipeline_stage";
  if (dp == 0 ||
      !report->Good({"training.micro_batch_size", "training.global_batch_size", field})) {
    return;
  }
  const int64_t pp = parallel.pipeline_model_parallel_size;
  const int64_t group = parallel.microbatch_group_size_per_virtual_pipeline_stage.value_or(pp);
  const int64_t step = training.micro_batch_size * dp;
  const int64_t microbatches = training.global_batch_size.value_or(step) / step;
  if (group < pp) {
    report->Add(field, absl::StrCat("must be at least pipeline_model_parallel_size=", pp));
  } else if (group > microbatches) {
    report->Add("training.global_batch_size",
                absl::StrCat("gives ", microbatches,
                             " microbatches; the interleaved schedule "
                             "needs at least ",
                             group));
  } else if (microbatches % group != 0 && microbatches % group < pp) {
    report->Add(
        "training.global_batch_size",
        absl::StrCat("gives ", microbatches, " microbatches; the last group of ", group,
                     " would have ", microbatches % group, ", fewer than the ", pp, " stages"));
  }
}

}  // namespace

void CheckPipeline(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  if (!report->Good({"model.num_layers", "parallel.pipeline_model_parallel_size",
                     "parallel.virtual_pipeline_model_parallel_size",
                     "parallel.num_layers_per_virtual_pipeline_stage",
                     "parallel.pipeline_model_parallel_layout",
                     "parallel.decoder_first_pipeline_num_layers",
                     "parallel.decoder_last_pipeline_num_layers"})) {
    return;
  }
  const int64_t pp = parallel.pipeline_model_parallel_size;
  const int num_ways = (parallel.virtual_pipeline_model_parallel_size ? 1 : 0) +
                       (parallel.num_layers_per_virtual_pipeline_stage ? 1 : 0) +
                       (parallel.pipeline_model_parallel_layout ? 1 : 0);
  if (num_ways > 1) {
    report->Add(parallel.pipeline_model_parallel_layout
                    ? "parallel.pipeline_model_parallel_layout"
                    : "parallel.num_layers_per_virtual_pipeline_stage",
                "give only one of virtual_pipeline_model_parallel_size, "
                "num_layers_per_virtual_pipeline_stage and pipeline_model_parallel_layout");
    return;
  }
  int64_t chunks = 0;
  if (parallel.pipeline_model_parallel_layout) {
    const std::string& layout = *parallel.pipeline_model_parallel_layout;
    const std::string wrong = PipelineLayoutProblem(layout, spec.model.num_layers, pp);
    if (!wrong.empty()) {
      report->Add("parallel.pipeline_model_parallel_layout", wrong);
      return;
    }
    chunks = static_cast<int64_t>(ExpandPipelineLayout(layout)->size()) / pp;
    if (chunks > 1 && pp < 2) {
      report->Add("parallel.pipeline_model_parallel_layout",
                  "needs parallel.pipeline_model_parallel_size of at least 2");
      return;
    }
  } else {
    chunks = CheckVirtualStages(spec, CheckLayerSplit(spec, report), report);
  }
  if (chunks > 1) CheckMicrobatchGroups(spec, report);
}

}  // namespace muster
