// Loss scale of fp16 training (reference 7.4; Megatron's DynamicGradScaler). Pure.
//
// A clean step does not restore the hysteresis, nor does a backoff: only growth does. So after the
// first backoff every bad step shrinks the scale until the next growth.
#pragma once

#include <cstdint>

#include "absl/status/statusor.h"

namespace muster {

struct LossScalerOptions {
  bool dynamic = false;  // false: `initial_scale` for good (1 for bf16, fp32, fp64)
  double initial_scale = 1;
  double min_scale = 1;
  double growth_factor = 2, backoff_factor = 0.5;
  int64_t growth_interval = 1000;  // clean steps in a row
  int64_t hysteresis = 2;          // bad steps before the scale shrinks
};

struct LossScalerState {  // what a checkpoint keeps
  double scale = 1;
  int64_t growth_tracker = 0;
  int64_t hysteresis_tracker = 0;
  bool operator==(const LossScalerState&) const = default;
};

class LossScaler {
 public:
  // INVALID_ARGUMENT: 0 < min <= initial, growth > 1, 0 < backoff < 1, interval and hysteresis > 0.
  static absl::StatusOr<LossScaler> Create(const LossScalerOptions& options);

  double scale() const { return state_.scale; }
  // Once a step; `found_inf` as agreed over all ranks that share the parameters.
  void Update(bool found_inf);

  const LossScalerState& state() const { return state_; }
  // A constant scaler keeps the scale of its options.
  void Load(const LossScalerState& state);

 private:
  explicit LossScaler(const LossScalerOptions& options);
  LossScalerOptions options_;
  LossScalerState state_;
};

}  // namespace muster
