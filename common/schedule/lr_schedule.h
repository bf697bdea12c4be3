// Learning rate and weight decay as functions of consumed samples (reference 8; Megatron's
// OptimizerParamScheduler). All step counts are in samples. Pure; not thread-safe.
//
// The value for a step is read before it: step t trains with Lr(samples consumed before t), so the
// first one of a run with warm-up uses init_lr.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"

namespace muster {

enum class LrDecayStyle { kConstant, kLinear, kCosine, kInverseSquareRoot, kWsd };
enum class WsdDecayStyle { kLinear, kCosine, kExponential, kMinusSqrt };
enum class WeightDecayStyle { kConstant, kLinear, kCosine };

// The names that a spec uses; INVALID_ARGUMENT lists them.
absl::StatusOr<LrDecayStyle> ParseLrDecayStyle(const std::string& name);
absl::StatusOr<WsdDecayStyle> ParseWsdDecayStyle(const std::string& name);
absl::StatusOr<WeightDecayStyle> ParseWeightDecayStyle(const std::string& name);

struct LrScheduleOptions {
  double init_lr = 0, max_lr = 0, min_lr = 0;
  double lr_warmup_steps = 0;  // samples; fractional with lr_warmup_fraction
  int64_t lr_decay_steps = 0;  // samples
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  std::optional<int64_t> wsd_decay_steps;  // samples; needed by WSD
  WsdDecayStyle wsd_decay_style = WsdDecayStyle::kExponential;
  double start_wd = 0, end_wd = 0;
  int64_t wd_incr_steps = 0;  // samples
  WeightDecayStyle wd_incr_style = WeightDecayStyle::kConstant;
  // At load: the class's values win, or the checkpoint's; neither: they must be equal.
  bool override_checkpoint = false, use_checkpoint = false;
};

// What one parameter group changes.
struct GroupOverrides {
  std::optional<double> max_lr, min_lr, start_wd, end_wd;
  double wd_mult = 1;  // 0: no weight decay
  double lr_mult = 1;
};

// What a checkpoint keeps (init_lr and the WSD fields are not kept, as in Megatron).
struct LrScheduleState {
  double max_lr = 0, min_lr = 0, lr_warmup_steps = 0;
  int64_t lr_decay_steps = 0, num_steps = 0;
  LrDecayStyle lr_decay_style = LrDecayStyle::kLinear;
  double start_wd = 0, end_wd = 0;
  int64_t wd_incr_steps = 0;
  WeightDecayStyle wd_incr_style = WeightDecayStyle::kConstant;
  bool operator==(const LrScheduleState&) const = default;
};

class LrSchedule {
 public:
  // INVALID_ARGUMENT: 0 <= min_lr <= max_lr, init_lr <= max_lr, decay steps > 0, warm-up < decay
  // steps, WSD needs its steps, 0 <= start_wd <= end_wd (equal when constant), not both flags.
  static absl::StatusOr<LrSchedule> Create(const LrScheduleOptions& options);

  // After a step that was not skipped: `num_samples` = microbatches * micro batch * dp.
  void Step(int64_t num_samples) { num_steps_ += num_samples; }
  int64_t num_steps() const { return num_steps_; }

  // Now, for a group.
  double Lr(const GroupOverrides& group = {}) const { return LrAt(num_steps_, group); }
  double WeightDecay(const GroupOverrides& group = {}) const {
    return WeightDecayAt(num_steps_, group);
  }
  // At `n` samples. WeightDecayAt includes wd_mult, LrAt includes lr_mult.
  double LrAt(int64_t n, const GroupOverrides& group = {}) const;
  double WeightDecayAt(int64_t n, const GroupOverrides& group = {}) const;

  LrScheduleState State() const;
  // FAILED_PRECONDITION names a value that differs when neither flag is set; nothing has changed
  // then. With override_checkpoint the position is `consumed_train_samples`, else the state's.
  // (Megatron restores the weight-decay fields after its first step(); here all are in force at
  // once, so the first step after a load with other values already uses them.)
  absl::Status Load(const LrScheduleState& state, int64_t consumed_train_samples);

 private:
  explicit LrSchedule(const LrScheduleOptions& options) : options_(options) {}
  LrScheduleOptions options_;
  int64_t num_steps_ = 0;
};

}  // namespace muster
