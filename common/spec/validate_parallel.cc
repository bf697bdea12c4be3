// Rules on the rank grid and sharded data parallelism.
#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/spec/validate_rules.h"

namespace muster {
namespace {

// 0 while the sizes are faulty or do not divide world_size.
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
  if (cp > 1) {
    must_be_multiple("model.seq_length", model.seq_length, 2 * cp,
                     "2 x parallel.context_parallel_size");
  }
  const bool exchanges_heads =
      report->Good({"parallel.cp_comm_type"}) && cp > 1 && parallel.cp_comm_type.front() == "a2a";
  const int64_t groups = model.num_query_groups.value_or(model.num_attention_heads);
  if (exchanges_heads && report->Good({"model.num_query_groups", "model.num_attention_heads"}) &&
      (model.num_attention_heads % (tp * cp) != 0 || groups % (tp * cp) != 0)) {
    report->Add(
        "parallel.cp_comm_type",
        absl::StrCat("a2a needs query heads (", model.num_attention_heads, ") and query groups (",
                     groups, ") that are multiples of tensor x context parallel size = ", tp * cp));
  }
}

void CheckSharding(const JobSpec& spec, RuleReport* report) {
  const ParallelSpec& parallel = spec.parallel;
  const TrainingSpec& training = spec.training;
  const bool megatron_fsdp = parallel.use_megatron_fsdp;
  if (parallel.overlap_param_gather && !parallel.overlap_grad_reduce) {
    report->Add("parallel.overlap_param_gather", "needs parallel.overlap_grad_reduce");
  }
  if (parallel.overlap_param_gather && !parallel.use_distributed_optimizer && !megatron_fsdp &&
      spec.optimizer.optimizer != "dist_muon") {
    report->Add("parallel.overlap_param_gather",
                "needs parallel.use_distributed_optimizer, parallel.use_megatron_fsdp or "
                "optimizer.optimizer dist_muon");
  }
  if (parallel.pad_buckets_for_high_nccl_busbw && !parallel.use_distributed_optimizer) {
    report->Add("parallel.pad_buckets_for_high_nccl_busbw",
                "needs parallel.use_distributed_optimizer");
  }
  if (parallel.ddp_bucket_size && parallel.ddp_num_buckets) {
    report->Add("parallel.ddp_num_buckets", "excludes parallel.ddp_bucket_size");
  }
  if (parallel.ddp_average_in_collective && training.calculate_per_token_loss) {
    report->Add("parallel.ddp_average_in_collective", "excludes training.calculate_per_token_loss");
  }
  const int64_t instances = parallel.num_distributed_optimizer_instances;
  const int64_t dp = DataParallelSize(spec, *report);
  const int64_t edp = ExpertDataParallelSize(spec, *report);
  if (report->Good({"parallel.num_distributed_optimizer_instances"}) && instances > 1) {
    const char* const field = "parallel.num_distributed_optimizer_instances";
    if (!parallel.use_distributed_optimizer) {
      report->Add(field, "needs parallel.use_distributed_optimizer");
    } else if (dp != 0 && edp != 0 &&
               ((dp * parallel.context_parallel_size) % instances != 0 || edp % instances != 0)) {
      report->Add(field, absl::StrCat("must divide data x context parallel size = ",
                                      dp * parallel.context_parallel_size,
                                      " and expert data parallel size = ", edp));
    }
  }
  if (report->Good({"parallel.data_parallel_sharding_strategy"}) && !megatron_fsdp &&
      parallel.data_parallel_sharding_strategy != "no_shard") {
    report->Add("parallel.data_parallel_sharding_strategy", "needs parallel.use_megatron_fsdp");
  }
  const bool muon = UsesMuon(spec.optimizer);
  if (megatron_fsdp && muon && report->Good({"optimizer.optimizer"})) {
    report->Add("parallel.use_megatron_fsdp", "runs with optimizer adam or sgd only");
  }
  if (!parallel.use_torch_fsdp2) return;
  const struct {
    bool broken;
    const char* message;
  } rules[] = {
      {megatron_fsdp, "excludes parallel.use_megatron_fsdp"},
      {parallel.use_distributed_optimizer, "excludes parallel.use_distributed_optimizer"},
      {parallel.pipeline_model_parallel_size > 1, "needs pipeline_model_parallel_size=1"},
      {parallel.expert_model_parallel_size > 1, "needs expert_model_parallel_size=1"},
      {!spec.model.untie_embeddings_and_output_weights,
       "needs model.untie_embeddings_and_output_weights"},
      {training.fp16, "excludes training.fp16"},
      {muon, "runs with optimizer adam or sgd only"},
  };
  for (const auto& rule : rules) {
    if (rule.broken) report->Add("parallel.use_torch_fsdp2", rule.message);
  }
}

}  // namespace muster
