#include "common/schedule/lr_schedule.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "common/base/check.h"
#include "common/base/status.h"

namespace muster {
namespace {

constexpr double kPi = 3.14159265358979323846;

template <class E>
struct Name {
  const char* first;
  E second;
};
constexpr Name<LrDecayStyle> kLrStyles[] = {
    {"constant", LrDecayStyle::kConstant},
    {"linear", LrDecayStyle::kLinear},
    {"cosine", LrDecayStyle::kCosine},
    {"inverse-square-root", LrDecayStyle::kInverseSquareRoot},
    {"WSD", LrDecayStyle::kWsd}};
constexpr Name<WsdDecayStyle> kWsdStyles[] = {{"linear", WsdDecayStyle::kLinear},
                                              {"cosine", WsdDecayStyle::kCosine},
                                              {"exponential", WsdDecayStyle::kExponential},
                                              {"minus_sqrt", WsdDecayStyle::kMinusSqrt}};
constexpr Name<WeightDecayStyle> kWdStyles[] = {{"constant", WeightDecayStyle::kConstant},
                                                {"linear", WeightDecayStyle::kLinear},
                                                {"cosine", WeightDecayStyle::kCosine}};

template <class E, size_t N>
absl::StatusOr<E> Parse(const char* field, const Name<E> (&names)[N], const std::string& name) {
  for (const auto& entry : names) {
    if (name == entry.first) return entry.second;
  }
  return absl::InvalidArgumentError(
      absl::StrCat(field, "=\"", name, "\" must be one of ",
                   absl::StrJoin(names, ", ", [](std::string* out, const Name<E>& entry) {
                     absl::StrAppend(out, entry.first);
                   })));
}

template <class E, size_t N>
std::string NameOf(const Name<E> (&names)[N], E value) {
  for (const auto& entry : names) {
    if (value == entry.second) return entry.first;
  }
  MUSTER_CHECK_MSG(false, "style without a name");
}

std::string Show(double value) { return absl::StrCat(value); }
std::string Show(int64_t value) { return absl::StrCat(value); }
std::string Show(LrDecayStyle value) { return NameOf(kLrStyles, value); }
std::string Show(WeightDecayStyle value) { return NameOf(kWdStyles, value); }

// Share of (max - min) that is left in WSD's last phase, at `ratio` of it.
double WsdCoefficient(WsdDecayStyle style, double ratio) {
  switch (style) {
    case WsdDecayStyle::kLinear:
      return 1.0 - ratio;
    case WsdDecayStyle::kCosine:
      return 0.5 * (std::cos(kPi * ratio) + 1.0);
    case WsdDecayStyle::kExponential:
      return 2.0 * std::pow(0.5, ratio) - 1.0;
    case WsdDecayStyle::kMinusSqrt:
      return 1.0 - std::sqrt(ratio);
  }
  MUSTER_CHECK(false);
}

// One value of a checkpoint against the class's (reference 8, "Load").
template <class T>
absl::Status Merge(const LrScheduleOptions& options, const char* name, const T& saved, T* value) {
  if (options.override_checkpoint) return absl::OkStatus();
  if (options.use_checkpoint) {
    *value = saved;
    return absl::OkStatus();
  }
  if (saved == *value) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the checkpoint's scheduler has ", name, "=", Show(saved), ", the spec ", Show(*value),
      "; make them equal, or set schedule.override_opt_param_scheduler (keep the spec's) or "
      "schedule.use_checkpoint_opt_param_scheduler (take the checkpoint's)"));
}

}  // namespace

absl::StatusOr<LrDecayStyle> ParseLrDecayStyle(const std::string& name) {
  return Parse("schedule.lr_decay_style", kLrStyles, name);
}
absl::StatusOr<WsdDecayStyle> ParseWsdDecayStyle(const std::string& name) {
  return Parse("schedule.lr_wsd_decay_style", kWsdStyles, name);
}
absl::StatusOr<WeightDecayStyle> ParseWeightDecayStyle(const std::string& name) {
  return Parse("schedule.weight_decay_incr_style", kWdStyles, name);
}

absl::StatusOr<LrSchedule> LrSchedule::Create(const LrScheduleOptions& o) {
  auto invalid = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  // Written so that NaN fails too.
  if (!(o.min_lr >= 0)) return invalid("schedule.min_lr=", o.min_lr, " must not be negative");
  if (!(o.max_lr >= o.min_lr)) {
    return invalid("optimizer.lr=", o.max_lr, " must be at least schedule.min_lr=", o.min_lr);
  }
  if (!(o.init_lr <= o.max_lr)) {
    return invalid("schedule.lr_warmup_init=", o.init_lr,
                   " must not be above optimizer.lr=", o.max_lr);
  }
  if (o.lr_decay_steps <= 0) {
    return invalid("learning-rate decay steps must be above 0, not ", o.lr_decay_steps,
                   " samples (lr_decay_iters or train_iters times the global batch size)");
  }
  if (!(o.lr_warmup_steps >= 0) || !(o.lr_warmup_steps < o.lr_decay_steps)) {
    return invalid("learning-rate warm-up of ", o.lr_warmup_steps,
                   " samples must be below the decay steps of ", o.lr_decay_steps, " samples");
  }
  if (o.lr_decay_style == LrDecayStyle::kWsd && o.wsd_decay_steps.value_or(0) <= 0) {
    return invalid(
        "schedule.lr_decay_style=\"WSD\" needs lr_wsd_decay_iters or lr_wsd_decay_samples above 0");
  }
  if (!(o.start_wd >= 0) || !(o.end_wd >= o.start_wd)) {
    return invalid("schedule.start_weight_decay=", o.start_wd,
                   " must be at least 0 and end_weight_decay=", o.end_wd, " not below it");
  }
  if (o.wd_incr_style == WeightDecayStyle::kConstant && o.start_wd != o.end_wd) {
    return invalid("schedule.weight_decay_incr_style=\"constant\" needs start_weight_decay=",
                   o.start_wd, " equal to end_weight_decay=", o.end_wd);
  }
  if (o.wd_incr_style != WeightDecayStyle::kConstant && o.wd_incr_steps <= 0) {
    return invalid("weight-decay steps must be above 0, not ", o.wd_incr_steps, " samples");
  }
  if (o.override_checkpoint && o.use_checkpoint) {
    return invalid(
        "schedule.override_opt_param_scheduler and use_checkpoint_opt_param_scheduler "
        "contradict each other; set one");
  }
  return LrSchedule(o);
}

double LrSchedule::LrAt(int64_t num_steps, const GroupOverrides& group) const {
  const LrScheduleOptions& o = options_;
  const double max_lr = group.max_lr.value_or(o.max_lr);
  const double min_lr = group.min_lr.value_or(o.min_lr);
  const double n = static_cast<double>(num_steps);
  const double decay_steps = static_cast<double>(o.lr_decay_steps);

  const auto unscaled = [&]() -> double {
    if (o.lr_warmup_steps > 0 && n <= o.lr_warmup_steps) {
      return o.init_lr + (max_lr - o.init_lr) * n / o.lr_warmup_steps;
    }
    if (o.lr_decay_style == LrDecayStyle::kConstant) return max_lr;
    if (num_steps > o.lr_decay_steps) return min_lr;
    if (o.lr_decay_style == LrDecayStyle::kInverseSquareRoot) {
      const double warmup = std::max(o.lr_warmup_steps, 1.0);
      return std::max(min_lr, max_lr * std::sqrt(warmup) / std::sqrt(std::max(n, 1.0)));
    }
    double coefficient = 1;
    const double ratio = (n - o.lr_warmup_steps) / (decay_steps - o.lr_warmup_steps);
    switch (o.lr_decay_style) {
      case LrDecayStyle::kLinear:
        coefficient = 1.0 - ratio;
        break;
      case LrDecayStyle::kCosine:
        coefficient = 0.5 * (std::cos(kPi * ratio) + 1.0);
        break;
      case LrDecayStyle::kWsd: {
        const int64_t anneal_start = o.lr_decay_steps - *o.wsd_decay_steps;
        if (num_steps > anneal_start) {
          coefficient =
              WsdCoefficient(o.wsd_decay_style, static_cast<double>(num_steps - anneal_start) /
                                                    static_cast<double>(*o.wsd_decay_steps));
        }
        break;
      }
      case LrDecayStyle::kConstant:
      case LrDecayStyle::kInverseSquareRoot:
        MUSTER_CHECK(false);  // returned above
    }
    return min_lr + coefficient * (max_lr - min_lr);
  };
  return unscaled() * group.lr_mult;
}

double LrSchedule::WeightDecayAt(int64_t num_steps, const GroupOverrides& group) const {
  const LrScheduleOptions& o = options_;
  const double start = group.start_wd.value_or(o.start_wd);
  const double end = group.end_wd.value_or(o.end_wd);
  if (num_steps > o.wd_incr_steps || o.wd_incr_style == WeightDecayStyle::kConstant) {
    return end * group.wd_mult;
  }
  const double ratio = static_cast<double>(num_steps) / static_cast<double>(o.wd_incr_steps);
  const double coefficient = o.wd_incr_style == WeightDecayStyle::kLinear
                                 ? ratio
                                 : 0.5 * (std::cos(kPi * (1.0 - ratio)) + 1.0);
  return (start + coefficient * (end - start)) * group.wd_mult;
}

LrScheduleState LrSchedule::State() const {
  const LrScheduleOptions& o = options_;
  return {.max_lr = o.max_lr,
          .min_lr = o.min_lr,
          .lr_warmup_steps = o.lr_warmup_steps,
          .lr_decay_steps = o.lr_decay_steps,
          .num_steps = num_steps_,
          .lr_decay_style = o.lr_decay_style,
          .start_wd = o.start_wd,
          .end_wd = o.end_wd,
          .wd_incr_steps = o.wd_incr_steps,
          .wd_incr_style = o.wd_incr_style};
}

absl::Status LrSchedule::Load(const LrScheduleState& state, int64_t consumed_train_samples) {
  LrScheduleOptions merged = options_;
  RETURN_IF_ERROR(Merge(options_, "max_lr", state.max_lr, &merged.max_lr));
  RETURN_IF_ERROR(Merge(options_, "min_lr", state.min_lr, &merged.min_lr));
  RETURN_IF_ERROR(
      Merge(options_, "lr_warmup_steps", state.lr_warmup_steps, &merged.lr_warmup_steps));
  RETURN_IF_ERROR(Merge(options_, "lr_decay_steps", state.lr_decay_steps, &merged.lr_decay_steps));
  RETURN_IF_ERROR(Merge(options_, "lr_decay_style", state.lr_decay_style, &merged.lr_decay_style));
  RETURN_IF_ERROR(Merge(options_, "start_wd", state.start_wd, &merged.start_wd));
  RETURN_IF_ERROR(Merge(options_, "end_wd", state.end_wd, &merged.end_wd));
  RETURN_IF_ERROR(Merge(options_, "wd_incr_steps", state.wd_incr_steps, &merged.wd_incr_steps));
  RETURN_IF_ERROR(Merge(options_, "wd_incr_style", state.wd_incr_style, &merged.wd_incr_style));
  RETURN_IF_ERROR(Annotate(Create(merged).status(), "scheduler values of the checkpoint"));
  options_ = merged;
  num_steps_ = options_.override_checkpoint ? consumed_train_samples : state.num_steps;
  return absl::OkStatus();
}

}  // namespace muster
