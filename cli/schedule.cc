#include <iostream>

#include "absl/strings/str_cat.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/spec_file.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/schedule/pipeline_schedule.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

struct SpecSchedule {
  int num_chunks = 1;
  PipelineSchedule ranks;
};

absl::StatusOr<SpecSchedule> ScheduleOf(const JobSpec& spec) {
  // The vocabulary decides nothing here.
  const ResolvedSpec resolved = Resolve(spec, 1);
  // Refuses a batch that does not divide.
  RETURN_IF_ERROR(MicrobatchCalculator::Create(MicrobatchOptionsOf(spec, resolved)).status());
  ASSIGN_OR_RETURN(const LayerSplit split, LayerSplitOf(spec));
  // With a growing batch: that of the full size.
  const int64_t num_microbatches =
      resolved.global_batch_size / (spec.training.micro_batch_size * resolved.data_parallel_size);
  const ScheduleOptions options = ScheduleOptionsOf(spec, split.virtual_pp, num_microbatches);
  ASSIGN_OR_RETURN(PipelineSchedule ranks, MakePipelineSchedule(options));
  return SpecSchedule{options.virtual_pp, std::move(ranks)};
}

int Schedule(const Invocation& invocation) {
  const std::optional<JobSpec> spec = LoadGoodSpec(invocation);
  if (!spec.has_value()) return kExitUsage;
  const absl::StatusOr<SpecSchedule> schedule = ScheduleOf(*spec);
  if (!schedule.ok()) {
    PrintError(schedule.status().message());
    return kExitUsage;
  }
  if (!invocation.Has("--json")) {
    for (size_t rank = 0; rank < schedule->ranks.size(); ++rank) {
      std::cout << absl::StrCat("pp ", rank, ": ",
                                ScheduleText(schedule->ranks[rank], schedule->num_chunks), "\n");
    }
    return kExitDone;
  }
  Json json = Json::array();
  for (const RankSchedule& rank : schedule->ranks) {
    Json list = Json::array();
    for (const ScheduleOp& op : rank) {
      list.push_back(
          {{"op", ScheduleOpName(op.kind)}, {"chunk", op.chunk}, {"microbatch", op.microbatch}});
      if (op.exchange >= 0) list.back()["exchange"] = op.exchange;
    }
    json.push_back(std::move(list));
  }
  PrintJson(json);
  return kExitDone;
}

}  // namespace

Command ScheduleCommand() {
  return {.name = "schedule",
          .arguments = "SPEC",
          .help = "what each pipeline rank does in a step, in order (offline)",
          .details =
              "Prints, for each pipeline rank, the operations of one step in their order: forward "
              "and backward passes of a model chunk and microbatch, sends and receives, gradient "
              "and parameter synchronisation. Needs no cluster.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {SetOption(), JsonOption()},
          .examples = {{"muster schedule spec.json --set parallel.pipeline_model_parallel_size=4",
                        "with four stages"}},
          .run = Schedule};
}

}  // namespace muster
