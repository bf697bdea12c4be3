// Rules on pipeline stages: layers, virtual stages, microbatches, layouts.
#include <algorithm>
#include <optional>
#include <string>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "common/spec/validate_rules.h"
#include "common/topology/pipeline_layout.h"

namespace muster {
namespace {

constexpr int64_t kMaxForwardPasses = 100'000'000;  // of a rank in one step

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

// The setting that gives the number of model chunks.
const char* VirtualStagesField(const ParallelSpec& parallel) {
  if (parallel.pipeline_model_parallel_layout) return "parallel.pipeline_model_parallel_layout";
  if (parallel.num_layers_per_virtual_pipeline_stage) {
    return "parallel.num_layers_per_virtual_pipeline_stage";
  }
  return "parallel.virtual_pipeline_model_parallel_size";
}

// Chunks of a pipeline rank; 0 after a report. `per_stage`: 0 when unknown.
int64_t CheckVirtualStages(const JobSpec& spec, int64_t per_stage, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const char* const by_size = "parallel.num_layers_per_virtual_pipeline_stage";
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
  const char* const field = VirtualStagesField(parallel);
  for (const int64_t layers : {per_stage, parallel.decoder_first_pipeline_num_layers.value_or(0),
                               parallel.decoder_last_pipeline_num_layers.value_or(0)}) {
    if (layers % chunks == 0) continue;
    report->Add(field, absl::StrCat("must divide every stage's layers; one has ", layers));
    return 0;
  }
  return chunks;
}

// A batch that some step of the job takes, and the setting that it comes from.
struct StepSize {
  const char* field;
  int64_t batch = 0, microbatches = 0;
  std::string Text() const {
    return absl::StrCat("gives ", microbatches, " microbatches (a batch of ", batch, ")");
  }
};

// The first of all steps that `breaks` a rule. The number of microbatches is that of the full
// batch, of each batch of a ramp-up (the schedule is made anew when it changes), or evaluation's.
// Batches that other rules refuse are passed over.
std::optional<StepSize> FindStepSize(const JobSpec& spec, const RuleReport& report,
                                     absl::FunctionRef<bool(int64_t microbatches)> breaks) {
  const TrainingSpec& training = spec.training;
  const int64_t dp = DataParallelSize(spec, report);
  if (dp == 0 || !report.Good({"training.micro_batch_size", "training.global_batch_size"})) {
    return std::nullopt;
  }
  const int64_t step = training.micro_batch_size * dp;
  const int64_t global = training.global_batch_size.value_or(step);
  const auto is_found = [&](int64_t batch) { return batch >= step && breaks(batch / step); };
  if (is_found(global)) return StepSize{"training.global_batch_size", global, global / step};
  const std::optional<int64_t>& eval_batch = spec.evaluation.eval_global_batch_size;
  if (eval_batch && report.Good({"evaluation.eval_global_batch_size"}) && is_found(*eval_batch)) {
    return StepSize{"evaluation.eval_global_batch_size", *eval_batch, *eval_batch / step};
  }
  const std::optional<std::vector<int64_t>>& rampup = training.rampup_batch_size;
  if (!rampup || rampup->size() != 3 || (*rampup)[0] < 1 || (*rampup)[1] < 1 ||
      !report.Good({"training.rampup_batch_size"})) {
    return std::nullopt;
  }
  for (int64_t batch = (*rampup)[0]; batch < global; batch += (*rampup)[1]) {
    if (is_found(batch)) return StepSize{"training.rampup_batch_size", batch, batch / step};
  }
  return std::nullopt;
}

// The interleaved schedule's own needs (reference 4.3).
void CheckMicrobatchGroups(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const char* const field = "parallel.microbatch_group_size_per_virtual_pipeline_stage";
  if (!report->Good({field})) return;
  const int64_t pp = parallel.pipeline_model_parallel_size;
  const int64_t group = parallel.microbatch_group_size_per_virtual_pipeline_stage.value_or(pp);
  if (group < pp) {
    report->Add(field, absl::StrCat("must be at least pipeline_model_parallel_size=", pp));
    return;
  }
  if (spec.data.full_validation && report->Good({"data.full_validation"})) {
    report->Add("data.full_validation",
                "evaluates one microbatch at a time; the interleaved schedule of virtual stages "
                "needs a group of them");
  }
  const std::optional<StepSize> too_few =
      FindStepSize(spec, *report, [&](int64_t microbatches) { return microbatches < group; });
  if (too_few) {
    report->Add(too_few->field,
                absl::StrCat(too_few->Text(), "; the interleaved schedule needs at least ", group));
    return;
  }
  const std::optional<StepSize> short_group = FindStepSize(
      spec, *report,
      [&](int64_t microbatches) { return microbatches % group != 0 && microbatches % group < pp; });
  if (short_group) {
    report->Add(short_group->field, absl::StrCat(short_group->Text(), "; the last group of ", group,
                                                 " would have ", short_group->microbatches % group,
                                                 ", fewer than the ", pp, " stages"));
  }
}

// A step's schedule is a list in memory.
void CheckScheduleLength(const JobSpec& spec, int64_t chunks, RuleReport* report) {
  const std::optional<StepSize> too_long = FindStepSize(spec, *report, [&](int64_t microbatches) {
    return microbatches > kMaxForwardPasses / chunks;
  });
  if (!too_long) return;
  report->Add(too_long->field, absl::StrCat(too_long->Text(), " for each of ", chunks,
                                            " model chunks; a step has "
                                            "at most ",
                                            kMaxForwardPasses, " forward passes"));
}

// Model chunks of a rank from whichever setting gives them; 0 after a report.
int64_t CheckChunks(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  if (!parallel.pipeline_model_parallel_layout) {
    return CheckVirtualStages(spec, CheckLayerSplit(spec, report), report);
  }
  const absl::StatusOr<LayerTable> table =
      AssignByLayout(*parallel.pipeline_model_parallel_layout,
                     {.num_layers = spec.model.num_layers,
                      .pp = static_cast<int>(parallel.pipeline_model_parallel_size)});
  if (!table.ok()) {
    report->Add("parallel.pipeline_model_parallel_layout", std::string(table.status().message()));
    return 0;
  }
  return static_cast<int64_t>(table->front().size());
}

// Layers of the pipeline rank that has most; for a split without faults.
int64_t MostLayersOfARank(const JobSpec& spec) {
  const ParallelSpec& parallel = spec.parallel;
  const int64_t pp = parallel.pipeline_model_parallel_size;
  const std::optional<int64_t>& first = parallel.decoder_first_pipeline_num_layers;
  const std::optional<int64_t>& last = parallel.decoder_last_pipeline_num_layers;
  if (parallel.pipeline_model_parallel_layout) {
    const absl::StatusOr<LayerTable> table =
        AssignByLayout(*parallel.pipeline_model_parallel_layout,
                       {.num_layers = spec.model.num_layers, .pp = static_cast<int>(pp)});
    int64_t most = 0;
    for (const std::vector<ChunkLayers>& rank : *table) {
      int64_t layers = 0;
      for (const ChunkLayers& chunk : rank) layers += static_cast<int64_t>(chunk.layers.size());
      most = std::max(most, layers);
    }
    return most;
  }
  const int64_t middle_stages = pp - (first ? 1 : 0) - (last ? 1 : 0);
  const int64_t middle = spec.model.num_layers - first.value_or(0) - last.value_or(0) +
                         (parallel.account_for_embedding_in_pipeline_split ? 1 : 0) +
                         (parallel.account_for_loss_in_pipeline_split ? 1 : 0);
  return std::max(
      {middle_stages > 0 ? middle / middle_stages : 0, first.value_or(0), last.value_or(0)});
}

void CheckRecomputedLayers(const JobSpec& spec, RuleReport* report) {
  const std::optional<int64_t>& count = spec.training.recompute_num_layers;
  if (!count || !report->Good({"training.recompute_num_layers"})) return;
  const int64_t most = std::min(MostLayersOfARank(spec), spec.model.num_layers);
  if (*count <= most) return;
  report->Add("training.recompute_num_layers",
              absl::StrCat("must be at most ", most, ", the most layers of a pipeline rank"));
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
  if (parallel.pipeline_model_parallel_layout &&
      (parallel.decoder_first_pipeline_num_layers || parallel.decoder_last_pipeline_num_layers ||
       parallel.account_for_embedding_in_pipeline_split ||
       parallel.account_for_loss_in_pipeline_split)) {
    report->Add("parallel.pipeline_model_parallel_layout",
                "says where every layer goes; it excludes decoder_first_pipeline_num_layers, "
                "decoder_last_pipeline_num_layers, account_for_embedding_in_pipeline_split and "
                "account_for_loss_in_pipeline_split");
    return;
  }
  const int64_t chunks = CheckChunks(spec, report);
  if (chunks == 0) return;
  CheckRecomputedLayers(spec, report);
  CheckScheduleLength(spec, chunks, report);
  if (parallel.overlap_p2p_comm_warmup_flush && (chunks == 1 || !parallel.overlap_p2p_comm)) {
    report->Add("parallel.overlap_p2p_comm_warmup_flush",
                chunks == 1 ? "needs virtual stages (the interleaved schedule)"
                            : "needs parallel.overlap_p2p_comm");
  }
  if (chunks == 1) return;
  if (pp < 2) {
    report->Add(VirtualStagesField(parallel),
                "needs parallel.pipeline_model_parallel_size of at least 2");
    return;
  }
  if (pp < 3 && !parallel.overlap_p2p_comm) {
    // With two stages one exchange would go both ways between the same two ranks.
    report->Add("parallel.overlap_p2p_comm",
                "must be true with virtual stages on 2 pipeline stages; without overlap they need "
                "at least 3");
  }
  CheckMicrobatchGroups(spec, report);
}

}  // namespace muster
