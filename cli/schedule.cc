#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/spec_file.h"
#include "cli/terminal.h"
#include "cli/timeline_svg.h"
#include "cli/timeline_text.h"
#include "common/base/status.h"
#include "common/schedule/from_spec.h"
#include "common/schedule/pipeline_schedule.h"
#include "common/schedule/timeline.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

struct SpecSchedule {
  ScheduleOptions options;
  PipelineSchedule ranks;
  Timeline timeline;
};

// Beyond it neither lists nor pictures are of use to anybody, and they would fill the memory.
constexpr int64_t kMostPasses = 1'000'000;

absl::StatusOr<SpecSchedule> ScheduleOf(const JobSpec& spec) {
  // The vocabulary decides nothing here.
  const ResolvedSpec resolved = Resolve(spec, 1);
  // Refuses a batch that does not divide.
  RETURN_IF_ERROR(MicrobatchCalculator::Create(MicrobatchOptionsOf(spec, resolved)).status());
  ASSIGN_OR_RETURN(const LayerSplit split, LayerSplitOf(spec));
  // With a growing batch: that of the full size.
  const int64_t num_microbatches =
      resolved.global_batch_size / (spec.training.micro_batch_size * resolved.data_parallel_size);
  SpecSchedule schedule;
  schedule.options = ScheduleOptionsOf(spec, split.virtual_pp, num_microbatches);
  const int64_t num_chunks = static_cast<int64_t>(schedule.options.pp) * split.virtual_pp;
  if (num_microbatches > kMostPasses / num_chunks) {
    return absl::InvalidArgumentError(absl::StrCat(
        "training.global_batch_size=", resolved.global_batch_size, " makes ", num_microbatches,
        " microbatches on each of ", num_chunks, " model chunks; at most ", kMostPasses,
        " passes are shown: --set training.global_batch_size to less"));
  }
  ASSIGN_OR_RETURN(schedule.ranks, MakePipelineSchedule(schedule.options));
  ASSIGN_OR_RETURN(schedule.timeline, MakeTimeline(schedule.options, schedule.ranks));
  return schedule;
}

// "interleaved 1F1B, overlapped: p = 4, v = 2, m = 8, N = 4"; N: microbatches that a chunk runs
// before the next chunk has its turn.
std::string Title(const ScheduleOptions& options) {
  const std::string sizes = absl::StrCat("p = ", options.pp, ", m = ", options.num_microbatches);
  if (options.pp == 1) return absl::StrCat("no pipelining: ", sizes);
  const std::optional<int>& partial = options.num_microbatches_with_partial_activation_checkpoints;
  const std::string checkpoints =
      partial.has_value() ? absl::StrCat(", ", *partial, " partially checkpointed") : "";
  if (options.virtual_pp == 1) return absl::StrCat("1F1B: ", sizes, checkpoints);
  const char* const overlap = !options.overlap_p2p_comm               ? "not overlapped"
                              : options.overlap_p2p_comm_warmup_flush ? "overlapped throughout"
                                                                      : "overlapped";
  return absl::StrFormat(
      "interleaved 1F1B, %s: p = %d, v = %d, m = %d, N = %d%s", overlap, options.pp,
      options.virtual_pp, options.num_microbatches,
      options.microbatch_group_size == 0 ? options.pp : options.microbatch_group_size, checkpoints);
}

// Beside each other what was measured in the drawing and what the formula says.
std::string BubbleNote(const SpecSchedule& schedule) {
  return absl::StrFormat(
      "bubble %.2f %% of the ideal time, measured in %d slots; (p-1)/(v m) = %d/%d = %.2f %%",
      100 * schedule.timeline.MeasuredBubble(), schedule.timeline.num_slots,
      schedule.options.pp - 1, schedule.options.virtual_pp * schedule.options.num_microbatches,
      100 * BubbleFraction(schedule.options));
}

Json ToJson(const SpecSchedule& schedule) {
  Json json = Json::array();
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    Json list = Json::array();
    size_t cell = 0;  // passes of the timeline have the order of the list
    for (const ScheduleOp& op : schedule.ranks[rank]) {
      list.push_back(
          {{"op", ScheduleOpName(op.kind)}, {"chunk", op.chunk}, {"microbatch", op.microbatch}});
      if (op.exchange >= 0) list.back()["exchange"] = op.exchange;
      if (op.recompute) list.back()["recompute"] = true;
      if (op.kind != ScheduleOp::Kind::kForward && op.kind != ScheduleOp::Kind::kBackward) continue;
      const SlotSpan slots = schedule.timeline.ranks[rank][cell++].slots;
      list.back()["begin_slot"] = slots.begin;
      list.back()["end_slot"] = slots.end;
    }
    json.push_back(std::move(list));
  }
  return json;
}

void PrintLists(const SpecSchedule& schedule) {
  for (size_t rank = 0; rank < schedule.ranks.size(); ++rank) {
    std::cout << absl::StrCat(
        "pp ", rank, ": ", ScheduleText(schedule.ranks[rank], schedule.options.virtual_pp), "\n");
  }
}

void PrintTimeline(const SpecSchedule& schedule) {
  const bool terminal = IsTerminal(STDOUT_FILENO);
  const bool chunks = schedule.options.virtual_pp > 1;
  std::cout << Title(schedule.options) << "\n\n"
            << TimelineText(schedule.timeline,
                            {.columns = terminal ? TerminalColumns(STDOUT_FILENO) : 0,
                             .colour = WantsColour(STDOUT_FILENO)})
            << (chunks
                    ? "\na0 b0 ... forward of microbatch 0 in chunk 0, 1, ...; A0-- B0-- ... its "
                      "backward\n"
                    : "\nF0 forward of microbatch 0; B0-- its backward\n")
            << BubbleNote(schedule) << "\n";
}

bool WriteSvg(const std::string& path, const SpecSchedule& schedule) {
  std::ofstream file(path);
  file << TimelineSvg(schedule.timeline, Title(schedule.options), BubbleNote(schedule));
  file.close();
  return file.good();
}

int Schedule(const Invocation& invocation) {
  const std::optional<JobSpec> spec = LoadGoodSpec(invocation);
  if (!spec.has_value()) return kExitUsage;
  const absl::StatusOr<SpecSchedule> schedule = ScheduleOf(*spec);
  if (!schedule.ok()) {
    PrintError(schedule.status().message());
    return kExitUsage;
  }
  if (invocation.Has("--svg")) {
    const std::string path = invocation.Get("--svg");
    if (!WriteSvg(path, *schedule)) {
      PrintError(absl::StrCat("--svg ", path, " cannot be written: ", std::strerror(errno)));
      return kExitUsage;
    }
  }
  if (invocation.Has("--json")) {
    PrintJson(ToJson(*schedule));
  } else if (invocation.Has("--list")) {
    PrintLists(*schedule);
  } else if (!invocation.Has("--svg")) {
    PrintTimeline(*schedule);
  }
  return kExitDone;
}

}  // namespace

Command ScheduleCommand() {
  return {
      .name = "schedule",
      .arguments = "SPEC",
      .help = "what each pipeline rank does in a step: a timeline (offline)",
      .details =
          "Draws the pipeline schedule of one step as a timeline: a row for each pipeline rank, "
          "a column for each time slot. A forward pass takes one slot, a backward pass two, "
          "communication none; dots are bubbles. Below stands the bubble as the drawing has it, "
          "beside the formula (p-1)/(v m). On a terminal it is drawn in parts that fit.\n\n"
          "--list prints the operations of each rank in their order instead: F0 and B0 for "
          "passes (F0*: all layers are recomputed), sf, rf, sb and rb for sends and receives (a+b "
          "is one exchange), GS and PS for gradient and parameter synchronisation. Needs no "
          "cluster.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {{"--list", "", "print each rank's operations in their order"},
                  {"--svg", "FILE", "write the timeline as a picture"},
                  SetOption(),
                  JsonOption()},
      .examples = {{"muster schedule spec.json --set parallel.pipeline_model_parallel_size=4",
                    "with four stages"},
                   {"muster schedule spec.json --svg schedule.svg", "as a picture"}},
      .run = Schedule};
}

}  // namespace muster
