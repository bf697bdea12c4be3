// Rules on context parallelism (reference 14.3).
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

// The first level is of the ranks that exchange heads, the second of those in a ring.
void CheckLevels(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const char* const field = "parallel.hierarchical_context_parallel_sizes";
  const std::vector<int64_t>& sizes = parallel.hierarchical_context_parallel_sizes;
  const std::vector<std::string>& types = parallel.cp_comm_type;
  if (report->Good({"parallel.cp_comm_type"}) &&
      std::find(types.begin(), types.end(), "a2a+p2p") != types.end() && sizes.size() != 2) {
    report->Add(field,
                "must have two levels for cp_comm_type a2a+p2p: the ranks that exchange heads and "
                "the rings of those");
    return;
  }
  const int64_t cp = parallel.context_parallel_size;
  int64_t ranks = 1;
  for (const int64_t size : sizes) {
    if (ranks <= cp) ranks *= size;  // at most 1e7 each
  }
  if (!sizes.empty() && ranks != cp) {
    report->Add(field,
                absl::StrCat("must have parallel.context_parallel_size=", cp, " as its product"));
  }
}

// Where heads are exchanged for positions, each rank gets whole heads of its own.
void CheckHeads(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  const ParallelSpec& parallel = spec.parallel;
  const int64_t tp = parallel.tensor_model_parallel_size;
  const int64_t heads = model.num_attention_heads;
  const int64_t groups = model.num_query_groups.value_or(heads);
  if (heads % tp != 0 || groups % tp != 0) return;  // reported by CheckSplits
  const std::vector<int64_t>& levels = parallel.hierarchical_context_parallel_sizes;
  for (const std::string& type : parallel.cp_comm_type) {
    const bool has_levels = type == "a2a+p2p" && levels.size() == 2;
    if (type != "a2a" && !has_levels) continue;
    const int64_t size = has_levels ? levels[0] : parallel.context_parallel_size;
    if (heads % (tp * size) == 0 && groups % (tp * size) == 0) continue;
    report->Add("parallel.cp_comm_type",
                absl::StrCat(type, " needs query heads (", heads, ") and query groups (", groups,
                             ") that are multiples of tensor x ",
                             has_levels ? "first level of context" : "context",
                             " parallel size = ", tp * size));
    return;
  }
}

}  // namespace

void CheckContext(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  const ParallelSpec& parallel = spec.parallel;
  if (!report->Good({"parallel.context_parallel_size"})) return;
  const int64_t cp = parallel.context_parallel_size;
  if (cp > 1 && report->Good({"model.seq_length"}) && model.seq_length % (2 * cp) != 0) {
    report->Add(
        "model.seq_length",
        absl::StrCat("must be a multiple of 2 x parallel.context_parallel_size = ", 2 * cp));
  }
  if (report->Good({"parallel.hierarchical_context_parallel_sizes"})) CheckLevels(spec, report);
  if (!report->Good({"parallel.cp_comm_type", "model.num_layers"})) return;
  const size_t given = parallel.cp_comm_type.size();
  if (given > 1 && static_cast<int64_t>(given) != model.num_layers) {
    report->Add("parallel.cp_comm_type",
                absl::StrCat("has ", given,
                             " values; it must have one for all layers or one for "
                             "each of model.num_layers=",
                             model.num_layers));
    return;
  }
  if (cp > 1 &&
      report->Good({"parallel.tensor_model_parallel_size", "model.num_query_groups",
                    "model.num_attention_heads", "parallel.hierarchical_context_parallel_sizes"})) {
    CheckHeads(spec, report);
  }
}

}  // namespace muster
