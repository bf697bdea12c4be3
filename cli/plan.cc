#include <algorithm>
#include <iostream>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "cli/client.h"
#include "cli/commands.h"
#include "cli/output.h"
#include "cli/spec_file.h"
#include "cli/spec_topology.h"
#include "common/schedule/expert_rows.h"
#include "common/schedule/plan.h"
#include "common/tokenizer/tokenizer.h"
#include "nlohmann/json.hpp"

namespace muster {
namespace {

using Json = nlohmann::ordered_json;

Json PlanToJson(const JobPlan& plan, const JobSpec& spec, const RankTopology& topology,
                const ResolvedSpec& resolved) {
  Json json;
  json["parameters"] = {{"total", plan.total_parameters}, {"per_rank", Json::array()}};
  json["bytes_per_rank"] = Json::array();
  json["host_bytes_per_rank"] = Json::array();
  for (int rank = 0; rank < topology.world_size(); ++rank) {
    const RankPlan& need = plan.stages[topology.Coordinates(rank).pp];
    json["parameters"]["per_rank"].push_back(need.parameters);
    json["bytes_per_rank"].push_back({{"rank", rank},
                                      {"parameters", need.parameter_bytes},
                                      {"gradients", need.gradient_bytes},
                                      {"optimizer", need.optimizer_bytes},
                                      {"gathered", need.gathered_bytes},
                                      {"activations", need.activation_bytes},
                                      {"total", need.total_bytes()}});
    json["host_bytes_per_rank"].push_back({{"rank", rank},
                                           {"snapshots", need.snapshot_bytes},
                                           {"snapshot_copies", need.snapshot_copy_bytes}});
  }
  json["bubble_fraction"] = plan.bubble_fraction;
  json["flops_per_iteration"] = plan.flops_per_iteration;
  json["num_microbatches"] = plan.num_microbatches;
  json["global_batch_size"] = resolved.global_batch_size;
  json["data_parallel_size"] = resolved.data_parallel_size;
  json["padded_vocab_size"] = resolved.padded_vocab_size;
  json["train_iters"] = resolved.train_iters;
  if (spec.model.num_experts.has_value()) {
    json["experts"] = {{"routing", "even"}, {"rows_per_microbatch", ExpertRowsOf(spec).received}};
  }
  return json;
}

void PrintHostMemory(const JobPlan& plan, const JobSpec& spec) {
  if (spec.recovery.snapshot_interval <= 0) return;
  const auto size = [](int64_t bytes) {
    return absl::StrCat(FormatCount(static_cast<double>(bytes)), "B");
  };
  int64_t own = 0, copies = 0;
  for (const RankPlan& stage : plan.stages) {
    own = std::max(own, stage.snapshot_bytes);
    copies = std::max(copies, stage.snapshot_copy_bytes);
  }
  std::cout << "\nhost memory of a rank: snapshots up to " << size(own);
  if (copies > 0) std::cout << ", and on several nodes copies of others' up to " << size(copies);
  std::cout << " (recovery.snapshot_interval=" << spec.recovery.snapshot_interval << "; 0: none)\n";
}

void PrintPlan(const JobPlan& plan, const JobSpec& spec, const ResolvedSpec& resolved) {
  const auto line = [](absl::string_view name, absl::string_view value) {
    std::cout << absl::StrFormat("%-20s %s\n", name, value);
  };
  const auto size = [](int64_t count) {
    return absl::StrCat(FormatCount(static_cast<double>(count)), "B");
  };
  line("parameters", absl::StrCat(plan.total_parameters, " (",
                                  FormatCount(static_cast<double>(plan.total_parameters)), ")"));
  line("global batch size", absl::StrCat(resolved.global_batch_size, " = ", plan.num_microbatches,
                                         " microbatches on each of ", resolved.data_parallel_size,
                                         " data-parallel replicas"));
  line("iterations", absl::StrCat(resolved.train_iters));
  line("FLOPs an iteration", absl::StrFormat("%.4g", plan.flops_per_iteration));
  line("pipeline bubble", absl::StrFormat("%.1f %% of the ideal time", 100 * plan.bubble_fraction));
  if (spec.model.num_experts.has_value()) {
    line("experts", absl::StrFormat("%.0f rows of a microbatch on each rank, if routing is even",
                                    ExpertRowsOf(spec).received));
  }
  std::vector<std::vector<std::string>> rows;
  for (size_t stage = 0; stage < plan.stages.size(); ++stage) {
    const RankPlan& need = plan.stages[stage];
    rows.push_back({absl::StrCat(stage), FormatCount(static_cast<double>(need.parameters)),
                    size(need.parameter_bytes), size(need.gradient_bytes),
                    size(need.optimizer_bytes), size(need.gathered_bytes),
                    size(need.activation_bytes), size(need.total_bytes())});
  }
  std::cout << "\na rank of each pipeline stage holds\n"
            << FormatTable({"STAGE", "PARAMETERS", "WEIGHTS", "GRADIENTS", "OPTIMIZER", "GATHERED",
                            "ACTIVATIONS", "TOTAL"},
                           rows);
  PrintHostMemory(plan, spec);
}

int Plan(const Invocation& invocation) {
  const std::string& path = invocation.arguments[0];
  absl::StatusOr<LoadedSpec> loaded = LoadSpec(path, invocation.GetAll("--set"));
  if (!loaded.ok()) {
    PrintError(loaded.status().message());
    return kExitUsage;
  }
  Json json = Json::object();
  if (loaded->problems.empty()) {
    int64_t vocab_size = loaded->spec.model.vocab_size.value_or(0);
    if (vocab_size == 0) {
      const auto tokenizer =
          MakeTokenizer(loaded->spec.data.tokenizer_type, loaded->spec.data.tokenizer_model);
      if (tokenizer.ok()) {
        vocab_size = (*tokenizer)->vocab_size();
      } else {
        loaded->problems.push_back({"data.tokenizer_type", loaded->spec.data.tokenizer_type,
                                    std::string(tokenizer.status().message())});
      }
    }
    if (vocab_size > 0) {
      const ResolvedSpec resolved = Resolve(loaded->spec, vocab_size);
      const absl::StatusOr<RankTopology> topology = RanksOf(loaded->spec);
      const absl::StatusOr<JobPlan> plan = MakePlan(loaded->spec, resolved);
      for (const absl::Status& status : {topology.status(), plan.status()}) {
        if (status.ok()) continue;
        PrintError(status.message());
        return kExitUsage;
      }
      if (invocation.Has("--json")) {
        json = PlanToJson(*plan, loaded->spec, *topology, resolved);
      } else {
        PrintPlan(*plan, loaded->spec, resolved);
      }
    }
    // A plan may be made on a machine without the data; what is missing is said all the same.
    CheckForRun(&*loaded);
  }
  if (invocation.Has("--json")) {
    json["problems"] = Json::array();
    for (const SpecProblem& problem : loaded->problems) {
      json["problems"].push_back(
          {{"field", problem.field}, {"value", problem.value}, {"message", problem.message}});
    }
    PrintJson(json);
  } else if (!loaded->problems.empty()) {
    PrintProblems(path, loaded->problems);
  }
  return loaded->problems.empty() ? kExitDone : kExitUsage;
}

}  // namespace

Command PlanCommand() {
  return {
      .name = "plan",
      .arguments = "SPEC",
      .help = "check a spec and show what it needs: parameters, memory, FLOPs (offline)",
      .details =
          "Checks the spec whole and prints parameters, bytes of each rank (parameters, gradients, "
          "optimizer, what fully sharded data parallelism gathers, activations), pipeline bubble, "
          "microbatches and FLOPs of an iteration. Experts are taken to be chosen evenly. Needs no "
          "cluster, and starts nothing. Of a spec with faults all of them are printed.",
      .min_arguments = 1,
      .max_arguments = 1,
      .options = {SetOption(), JsonOption()},
      .examples = {{"muster plan spec.json", "does it fit?"},
                   {"muster plan spec.json --set parallel.tensor_model_parallel_size=4 --json",
                    "another layout, for a script"}},
      .run = Plan};
}

}  // namespace muster
