// Rules on batches, length, precision, optimizer and schedule.
#include "absl/strings/str_cat.h"
#include "common/spec/validate_rules.h"

namespace muster {

void CheckBatches(const JobSpec& spec, RuleReport* report) {
  const TrainingSpec& training = spec.training;
  const int64_t dp = DataParallelSize(spec, *report);
  if (dp == 0 || !report->Good({"training.micro_batch_size", "training.global_batch_size"})) return;
  const int64_t step = training.micro_batch_size * dp;  // samples that all ranks take at once
  const std::string step_text =
      absl::StrCat("training.micro_batch_size x data parallel size = ", training.micro_batch_size,
                   " x ", dp, " = ", step);
  const int64_t global = training.global_batch_size.value_or(step);
  if (!training.decrease_batch_size_if_needed && global % step != 0) {
    report->Add("training.global_batch_size", absl::StrCat("must be a multiple of ", step_text));
  }
  if (training.decrease_batch_size_if_needed && global < step) {
    report->Add("training.global_batch_size", absl::StrCat("must be at least ", step_text));
  }
  const std::optional<int64_t>& eval_batch = spec.evaluation.eval_global_batch_size;
  if (eval_batch && report->Good({"evaluation.eval_global_batch_size"}) &&
      *eval_batch % step != 0) {
    report->Add("evaluation.eval_global_batch_size",
                absl::StrCat("must be a multiple of ", step_text));
  }
  if (!eval_batch && training.decrease_batch_size_if_needed && global >= step &&
      global % step != 0 && report->Good({"evaluation.eval_iters"}) &&
      spec.evaluation.eval_iters > 0) {
    // Training runs with fewer samples; a score must not change with the number of ranks unseen.
    report->Add("evaluation.eval_global_batch_size",
                absl::StrCat("must be set, to a multiple of ", step_text,
                             ": its default is training.global_batch_size=", global));
  }
  if (!training.rampup_batch_size || !report->Good({"training.rampup_batch_size"})) return;
  const std::vector<int64_t>& rampup = *training.rampup_batch_size;
  const char* const field = "training.rampup_batch_size";
  if (rampup.size() != 3 || rampup[0] < 1 || rampup[1] < 1 || rampup[2] < 1) {
    report->Add(field, "must be [start, increment, samples], three numbers of at least 1");
    return;
  }
  if (rampup[0] >= global || (global - rampup[0]) % rampup[1] != 0) {
    report->Add(field, absl::StrCat("start must reach training.global_batch_size=", global,
                                    " in one or more steps of increment"));
    return;
  }
  if (training.decrease_batch_size_if_needed && rampup[0] < step) {
    report->Add(field, absl::StrCat("start must be at least ", step_text));
  }
  if (!training.decrease_batch_size_if_needed && (rampup[0] % step != 0 || rampup[1] % step != 0)) {
    report->Add(field, absl::StrCat("start and increment must be multiples of ", step_text,
                                    ", or set training.decrease_batch_size_if_needed"));
  }
}

void CheckLength(const JobSpec& spec, RuleReport* report) {
  const TrainingSpec& training = spec.training;
  if (!report->Good({"training.train_iters", "training.train_samples"})) return;
  if (training.train_iters && training.train_samples) {
    report->Add("training.train_samples", "excludes training.train_iters; keep one of them");
  }
  if (!training.train_iters && !training.train_samples && !training.skip_train) {
    report->Add("training.train_iters", "is required (or training.train_samples)");
  }
  if (!report->Good({"training.global_batch_size", "training.micro_batch_size", "model.seq_length",
                     "resources.world_size"})) {
    return;
  }
  // Tokens of the job are counted in int64.
  const double batch = static_cast<double>(
      training.global_batch_size.value_or(training.micro_batch_size * spec.resources.world_size));
  const double samples = training.train_samples
                             ? static_cast<double>(*training.train_samples)
                             : static_cast<double>(training.train_iters.value_or(0)) * batch;
  if (samples * static_cast<double>(spec.model.seq_length) > 9e18) {
    report->Add(training.train_samples ? "training.train_samples" : "training.train_iters",
                "is too large: the job's tokens cannot be counted in 64 bits");
  }
}

void CheckPrecision(const JobSpec& spec, RuleReport* report) {
  const TrainingSpec& training = spec.training;
  if (!report->Good({"training.fp16", "training.bf16", "training.fp64"})) return;
  if (static_cast<int>(training.fp16) + training.bf16 + training.fp64 > 1) {
    report->Add(training.fp64 ? "training.fp64" : "training.fp16",
                "only one of training.fp16, training.bf16 and training.fp64 may be on");
  }
  if (training.fp64 && report->Good({"resources.device"}) && spec.resources.device != "cpu") {
    report->Add("training.fp64", "is for parity checks and needs resources.device=\"cpu\"");
  }
  if (report->Good({"training.min_loss_scale", "training.initial_loss_scale"}) &&
      training.min_loss_scale > training.initial_loss_scale) {
    report->Add("training.min_loss_scale",
                absl::StrCat("must be at most initial_loss_scale=", training.initial_loss_scale));
  }
  const ParallelSpec& parallel = spec.parallel;
  if (!report->Good(
          {"parallel.grad_reduce_in_bf16", "parallel.accumulate_allreduce_grads_in_fp32"})) {
    return;
  }
  if (parallel.grad_reduce_in_bf16 && !training.bf16) {
    report->Add("parallel.grad_reduce_in_bf16", "needs training.bf16");
  }
  if (parallel.grad_reduce_in_bf16 && parallel.accumulate_allreduce_grads_in_fp32) {
    report->Add("parallel.grad_reduce_in_bf16",
                "excludes parallel.accumulate_allreduce_grads_in_fp32");
  }
}

namespace {

void CheckRecomputeModules(const TrainingSpec& training, RuleReport* report) {
  const char* const field = "training.recompute_modules";
  const std::vector<std::string>& modules = training.recompute_modules;
  for (const std::string& module : modules) {
    if (module == "core_attn") continue;
    report->Add(field, absl::StrCat("\"", module, "\" cannot be recomputed alone; core_attn can"));
    return;
  }
  if (modules.size() == 1) return;
  if (!modules.empty()) report->Add(field, "names core_attn twice");
  if (modules.empty() && training.recompute_granularity == "selective") {
    report->Add(field, "must name core_attn with recompute_granularity selective");
  }
}

// Which microbatches recompute all of their layers.
void CheckPartialCheckpoints(const JobSpec& spec, RuleReport* report) {
  const char* const field = "training.num_microbatches_with_partial_activation_checkpoints";
  if (!spec.training.num_microbatches_with_partial_activation_checkpoints ||
      !report->Good({field, "parallel.pipeline_model_parallel_size"})) {
    return;
  }
  if (spec.parallel.pipeline_model_parallel_size < 2) {
    report->Add(field, "needs parallel.pipeline_model_parallel_size of at least 2");
  }
  if (spec.training.recompute_method == "uniform") {
    report->Add(field,
                "changes nothing with recompute_method uniform, which recomputes every layer of "
                "every microbatch; use block");
  }
}

}  // namespace

void CheckRecompute(const JobSpec& spec, RuleReport* report) {
  const TrainingSpec& training = spec.training;
  if (!report->Good({"training.recompute_granularity", "training.recompute_method",
                     "training.recompute_num_layers"})) {
    return;
  }
  const bool full = training.recompute_granularity == "full";
  if (report->Good({"training.recompute_modules"})) CheckRecomputeModules(training, report);
  if (full && !training.recompute_method) {
    report->Add("training.recompute_method", "is required by recompute_granularity full");
  }
  if (full && !training.recompute_num_layers) {
    report->Add("training.recompute_num_layers", "is required by recompute_granularity full");
  }
  if (!full && training.recompute_method) {
    report->Add("training.recompute_method", "needs recompute_granularity full");
  }
  if (!full && training.recompute_num_layers) {
    report->Add("training.recompute_num_layers", "needs recompute_granularity full");
  }
  CheckPartialCheckpoints(spec, report);
}

void CheckOptimizer(const JobSpec& spec, RuleReport* report) {
  const OptimizerSpec& optimizer = spec.optimizer;
  if (report->Good({"optimizer.optimizer"}) && UsesMuon(optimizer)) {
    if (report->Good({"training.fp16"}) && spec.training.fp16) {
      report->Add("optimizer.optimizer",
                  absl::StrCat(optimizer.optimizer, " cannot run with training.fp16; use bf16"));
    }
    if (spec.parallel.use_distributed_optimizer) {
      report->Add("parallel.use_distributed_optimizer",
                  absl::StrCat("excludes optimizer.optimizer=", optimizer.optimizer,
                               ", which updates whole matrices; dist_muon spreads them over the "
                               "data parallel ranks"));
    }
  }
  if (!report->Good({"optimizer.decoupled_lr", "optimizer.decoupled_min_lr", "schedule.min_lr"})) {
    return;
  }
  if (optimizer.decoupled_min_lr && !optimizer.decoupled_lr) {
    report->Add("optimizer.decoupled_min_lr", "needs optimizer.decoupled_lr");
  }
  if (optimizer.decoupled_lr &&
      optimizer.decoupled_min_lr.value_or(spec.schedule.min_lr) > *optimizer.decoupled_lr) {
    report->Add("optimizer.decoupled_lr",
                absl::StrCat("must be at least the smallest rate, ",
                             optimizer.decoupled_min_lr.value_or(spec.schedule.min_lr)));
  }
}

namespace {

// The unit of the schedule is that of the job's length; the other unit's fields must be unset.
void CheckScheduleUnit(const JobSpec& spec, RuleReport* report) {
  const ScheduleSpec& schedule = spec.schedule;
  const bool by_samples = spec.training.train_samples && !spec.training.train_iters;
  const bool by_iters = spec.training.train_iters && !spec.training.train_samples;
  const struct {
    const char* field;
    bool is_set;
    bool counts_samples;
  } fields[] = {
      {"schedule.lr_warmup_iters", schedule.lr_warmup_iters != 0, false},
      {"schedule.lr_decay_iters", schedule.lr_decay_iters.has_value(), false},
      {"schedule.lr_wsd_decay_iters", schedule.lr_wsd_decay_iters.has_value(), false},
      {"schedule.lr_warmup_samples", schedule.lr_warmup_samples != 0, true},
      {"schedule.lr_decay_samples", schedule.lr_decay_samples.has_value(), true},
      {"schedule.lr_wsd_decay_samples", schedule.lr_wsd_decay_samples.has_value(), true},
  };
  for (const auto& field : fields) {
    if (!field.is_set) continue;
    if (by_samples && !field.counts_samples) {
      report->Add(field.field,
                  "counts iterations; with training.train_samples use its _samples "
                  "counterpart");
    }
    if (by_iters && field.counts_samples) {
      report->Add(field.field,
                  "counts samples; with training.train_iters use its _iters counterpart");
    }
  }
}

void CheckScheduleLengths(const JobSpec& spec, RuleReport* report) {
  const ScheduleSpec& schedule = spec.schedule;
  const bool by_samples = spec.training.train_samples.has_value();
  const char* const unit = by_samples ? "samples" : "iters";
  const std::optional<int64_t>& length =
      by_samples ? spec.training.train_samples : spec.training.train_iters;
  const std::optional<int64_t>& decay_field =
      by_samples ? schedule.lr_decay_samples : schedule.lr_decay_iters;
  const std::optional<int64_t>& wsd =
      by_samples ? schedule.lr_wsd_decay_samples : schedule.lr_wsd_decay_iters;
  const int64_t warmup = by_samples ? schedule.lr_warmup_samples : schedule.lr_warmup_iters;
  const std::string wsd_field = absl::StrCat("schedule.lr_wsd_decay_", unit);
  if (schedule.lr_decay_style == "WSD" && !wsd) {
    report->Add(wsd_field, "is required by lr_decay_style WSD");
  }
  if (!length) return;
  const int64_t decay = decay_field.value_or(*length);
  const std::string decay_text =
      absl::StrCat(decay_field ? "schedule.lr_decay_" : "training.train_", unit, "=", decay);
  if (warmup >= decay) {
    report->Add(absl::StrCat("schedule.lr_warmup_", unit),
                absl::StrCat("must be less than ", decay_text));
  }
  if (schedule.lr_warmup_fraction && *schedule.lr_warmup_fraction >= 1) {
    report->Add("schedule.lr_warmup_fraction", "must be less than 1, or nothing is left to decay");
  }
  if (schedule.lr_decay_style == "WSD" && wsd && *wsd > decay) {
    report->Add(wsd_field, absl::StrCat("must be at most ", decay_text));
  }
}

void CheckWeightDecay(const JobSpec& spec, RuleReport* report) {
  const ScheduleSpec& schedule = spec.schedule;
  const bool constant = schedule.weight_decay_incr_style == "constant";
  const std::string style =
      absl::StrCat("weight_decay_incr_style ", schedule.weight_decay_incr_style);
  const struct {
    const char* field;
    bool is_set;
  } ends[] = {{"schedule.start_weight_decay", schedule.start_weight_decay.has_value()},
              {"schedule.end_weight_decay", schedule.end_weight_decay.has_value()}};
  for (const auto& end : ends) {
    if (constant && end.is_set) {
      report->Add(end.field,
                  absl::StrCat("has no place with ", style, "; use optimizer.weight_decay"));
    }
    if (!constant && !end.is_set) report->Add(end.field, absl::StrCat("is required by ", style));
  }
  if (schedule.start_weight_decay && schedule.end_weight_decay &&
      *schedule.end_weight_decay < *schedule.start_weight_decay) {
    report->Add("schedule.end_weight_decay",
                absl::StrCat("must be at least schedule.start_weight_decay=",
                             *schedule.start_weight_decay));
  }
}

}  // namespace

void CheckSchedule(const JobSpec& spec, RuleReport* report) {
  const ScheduleSpec& schedule = spec.schedule;
  if (report->Good({"optimizer.lr", "schedule.min_lr"}) && schedule.min_lr > spec.optimizer.lr) {
    report->Add("schedule.min_lr",
                absl::StrCat("must be at most optimizer.lr=", spec.optimizer.lr));
  }
  if (report->Good({"optimizer.lr", "schedule.lr_warmup_init"}) &&
      schedule.lr_warmup_init > spec.optimizer.lr) {
    report->Add("schedule.lr_warmup_init",
                absl::StrCat("must be at most optimizer.lr=", spec.optimizer.lr));
  }
  if (report->Good({"schedule.lr_warmup_fraction"}) && schedule.lr_warmup_fraction &&
      (schedule.lr_warmup_iters != 0 || schedule.lr_warmup_samples != 0)) {
    report->Add("schedule.lr_warmup_fraction",
                "excludes lr_warmup_iters and lr_warmup_samples; keep one of them");
  }
  if (report->Good({"training.train_iters", "training.train_samples", "schedule.lr_warmup_iters",
                    "schedule.lr_warmup_samples", "schedule.lr_decay_iters",
                    "schedule.lr_decay_samples", "schedule.lr_wsd_decay_iters",
                    "schedule.lr_wsd_decay_samples", "schedule.lr_decay_style",
                    "schedule.lr_warmup_fraction"})) {
    CheckScheduleUnit(spec, report);
    CheckScheduleLengths(spec, report);
  }
  if (report->Good({"schedule.weight_decay_incr_style", "schedule.start_weight_decay",
                    "schedule.end_weight_decay"})) {
    CheckWeightDecay(spec, report);
  }
  if (schedule.override_opt_param_scheduler && schedule.use_checkpoint_opt_param_scheduler) {
    report->Add("schedule.override_opt_param_scheduler",
                "excludes schedule.use_checkpoint_opt_param_scheduler");
  }
}

}  // namespace muster
