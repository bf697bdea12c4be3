// Rules on the rank grid and on what tensor parallelism divides.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

// Axes of the order string, each known and given once; sizes above 1 must be named (reference 1).
void CheckOrder(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  if (!report->Good({"parallel.order"})) return;
  const char* const field = "parallel.order";
  const std::vector<std::string> axes = absl::StrSplit(absl::AsciiStrToLower(parallel.order), '-');
  const std::vector<std::string> known = {"tp", "cp", "ep", "dp", "pp"};
  for (size_t i = 0; i < axes.size(); ++i) {
    if (std::find(known.begin(), known.end(), axes[i]) == known.end()) {
      report->Add(field, absl::StrCat("has an unknown axis \"", axes[i],
                                      "\"; the axes are tp, cp, ep, dp and pp, joined by '-'"));
      return;
    }
    if (std::find(axes.begin(), axes.begin() + static_cast<std::ptrdiff_t>(i), axes[i]) !=
        axes.begin() + static_cast<std::ptrdiff_t>(i)) {
      report->Add(field, absl::StrCat("names the axis ", axes[i], " twice"));
      return;
    }
  }
  const int64_t dp = DataParallelSize(spec, *report);
  const int64_t edp = ExpertDataParallelSize(spec, *report);
  if (dp == 0 || edp == 0) return;
  const struct {
    const char* axis;
    int64_t size;
  } sizes[] = {{"tp", std::max(parallel.tensor_model_parallel_size, ExpertTensorSize(parallel))},
               {"cp", parallel.context_parallel_size},
               {"ep", parallel.expert_model_parallel_size},
               {"dp", std::max(dp, edp)},
               {"pp", parallel.pipeline_model_parallel_size}};
  for (const auto& [axis, size] : sizes) {
    if (size > 1 && std::find(axes.begin(), axes.end(), axis) == axes.end()) {
      report->Add(field, absl::StrCat("must name the axis ", axis, ", whose size is ", size));
    }
  }
  if (!absl::EndsWith(parallel.order, "pp") && parallel.pipeline_model_parallel_size > 1 &&
      dp != edp) {
    report->Add(field,
                absl::StrCat("must end in pp while the data parallel sizes of dense layers (", dp,
                             ") and experts (", edp, ") differ"));
    return;
  }
  // A pipeline group is every rank at a distance of its stride: that must be the same in both
  // grids.
  int64_t dense_stride = 1, expert_stride = 1;
  for (const std::string& axis : axes) {
    if (axis == "pp") break;
    if (axis == "tp") {
      dense_stride *= parallel.tensor_model_parallel_size;
      expert_stride *= ExpertTensorSize(parallel);
    }
    if (axis == "cp") dense_stride *= parallel.context_parallel_size;
    if (axis == "ep") expert_stride *= parallel.expert_model_parallel_size;
    if (axis == "dp") {
      dense_stride *= dp;
      expert_stride *= edp;
    }
  }
  if (parallel.pipeline_model_parallel_size > 1 && dense_stride != expert_stride) {
    report->Add(field, absl::StrCat("puts pipeline stages ", dense_stride,
                                    " ranks apart for dense layers "
                                    "and ",
                                    expert_stride, " for experts; use an order that ends in pp"));
  }
}

}  // namespace

int64_t ExpertTensorSize(const ParallelSpec& parallel) {
  return parallel.expert_tensor_parallel_size.value_or(parallel.tensor_model_parallel_size);
}

int64_t FfnHiddenSize(const ModelSpec& model) {
  return model.ffn_hidden_size.value_or(model.swiglu ? model.hidden_size * 8 / 3 / 64 * 64
                                                     : 4 * model.hidden_size);
}

int64_t DataParallelSize(const JobSpec& spec, const RuleReport& report) {
  const ParallelSpec& parallel = spec.parallel;
  if (!report.Good({"resources.world_size", "parallel.tensor_model_parallel_size",
                    "parallel.context_parallel_size", "parallel.pipeline_model_parallel_size"})) {
    return 0;
  }
  const int64_t pair = parallel.tensor_model_parallel_size * parallel.context_parallel_size;
  if (pair > spec.resources.world_size) return 0;
  const int64_t ranks = pair * parallel.pipeline_model_parallel_size;
  return spec.resources.world_size % ranks == 0 ? spec.resources.world_size / ranks : 0;
}

int64_t ExpertDataParallelSize(const JobSpec& spec, const RuleReport& report) {
  const ParallelSpec& parallel = spec.parallel;
  if (!report.Good({"resources.world_size", "parallel.tensor_model_parallel_size",
                    "parallel.expert_tensor_parallel_size", "parallel.expert_model_parallel_size",
                    "parallel.pipeline_model_parallel_size"})) {
    return 0;
  }
  // Sizes are at most 1e7 each, so a product of two fits and is compared before the third.
  const int64_t pair = ExpertTensorSize(parallel) * parallel.expert_model_parallel_size;
  if (pair > spec.resources.world_size) return 0;
  const int64_t ranks = pair * parallel.pipeline_model_parallel_size;
  return spec.resources.world_size % ranks == 0 ? spec.resources.world_size / ranks : 0;
}

void CheckTopology(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  if (report->Good({"resources.world_size", "parallel.tensor_model_parallel_size",
                    "parallel.context_parallel_size", "parallel.pipeline_model_parallel_size"}) &&
      DataParallelSize(spec, *report) == 0) {
    report->Add(
        "resources.world_size",
        absl::StrCat("must be a multiple of tensor x pipeline x context parallel size = ",
                     parallel.tensor_model_parallel_size, " x ",
                     parallel.pipeline_model_parallel_size, " x ", parallel.context_parallel_size));
  } else if (report->Good({"resources.world_size", "parallel.tensor_model_parallel_size",
                           "parallel.expert_tensor_parallel_size",
                           "parallel.expert_model_parallel_size",
                           "parallel.pipeline_model_parallel_size"}) &&
             ExpertDataParallelSize(spec, *report) == 0) {
    report->Add("resources.world_size",
                absl::StrCat("must be a multiple of expert tensor x expert x pipeline parallel "
                             "size = ",
                             ExpertTensorSize(parallel), " x ", parallel.expert_model_parallel_size,
                             " x ", parallel.pipeline_model_parallel_size));
  }
  CheckOrder(spec, report);
}

void CheckSplits(const JobSpec& spec, RuleReport* report) {
  const ModelSpec& model = spec.model;
  const ParallelSpec& parallel = spec.parallel;
  const int64_t tp = parallel.tensor_model_parallel_size;
  const int64_t cp = parallel.context_parallel_size;
  if (!report->Good({"parallel.tensor_model_parallel_size", "parallel.context_parallel_size"})) {
    return;
  }
  const auto must_be_multiple = [&](const char* field, int64_t value, int64_t divisor,
                                    absl::string_view divisor_text) {
    if (!report->Good({field}) || value % divisor == 0) return;
    report->Add(field, absl::StrCat("must be a multiple of ", divisor_text, "=", divisor));
  };
  const absl::string_view tp_text = "parallel.tensor_model_parallel_size";
  must_be_multiple("model.num_attention_heads", model.num_attention_heads, tp, tp_text);
  if (model.num_query_groups && report->Good({"model.num_query_groups"}) &&
      *model.num_query_groups < tp) {
    // Megatron would copy a group to several ranks; here each rank holds whole groups of its own.
    report->Add("model.num_query_groups",
                absl::StrCat("must be at least ", tp_text, "=", tp,
                             ": every rank needs a key and value head of its own"));
  } else if (model.num_query_groups) {
    must_be_multiple("model.num_query_groups", *model.num_query_groups, tp, tp_text);
  }
  if (model.ffn_hidden_size) {
    must_be_multiple("model.ffn_hidden_size", *model.ffn_hidden_size, tp, tp_text);
  } else if (report->Good({"model.hidden_size", "model.ffn_hidden_size", "model.swiglu"})) {
    const int64_t ffn = FfnHiddenSize(model);
    if (ffn % tp != 0) {
      report->Add("model.hidden_size",
                  absl::StrCat("gives ffn_hidden_size ", ffn, ", which must be a multiple of ",
                               tp_text, "=", tp));
    }
  }
  if (parallel.sequence_parallel && tp > 1) {
    // Each context parallel rank splits its own part of the sequence again.
    must_be_multiple("model.seq_length", model.seq_length, tp * cp,
                     "tensor x context parallel size (sequence_parallel)");
  }
}

}  // namespace muster
