#include "common/schedule/loss_scaler.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace muster {

LossScaler::LossScaler(const LossScalerOptions& options)
    : options_(options),
      state_{.scale = options.initial_scale,
             .growth_tracker = 0,
             .hysteresis_tracker = options.hysteresis} {}

absl::StatusOr<LossScaler> LossScaler::Create(const LossScalerOptions& o) {
  auto invalid = [](const auto&... parts) {
    return absl::InvalidArgumentError(absl::StrCat(parts...));
  };
  if (!(o.initial_scale > 0)) {
    return invalid("training.initial_loss_scale=", o.initial_scale, " must be above 0");
  }
  if (!o.dynamic) return LossScaler(o);
  if (!(o.min_scale > 0) || !(o.min_scale <= o.initial_scale)) {
    return invalid("training.min_loss_scale=", o.min_scale,
                   " must be above 0 and not above initial_loss_scale=", o.initial_scale);
  }
  if (!(o.growth_factor > 1)) return invalid("growth factor ", o.growth_factor, " must be above 1");
  if (!(o.backoff_factor > 0) || !(o.backoff_factor < 1)) {
    return invalid("backoff factor ", o.backoff_factor, " must be between 0 and 1");
  }
  if (o.growth_interval < 1) {
    return invalid("training.loss_scale_window=", o.growth_interval, " must be at least 1");
  }
  if (o.hysteresis < 1) {
    return invalid("training.hysteresis=", o.hysteresis, " must be at least 1");
  }
  return LossScaler(o);
}

void LossScaler::Update(bool found_inf) {
  if (!options_.dynamic) return;
  if (found_inf) {
    state_.growth_tracker = 0;
    state_.hysteresis_tracker -= 1;
    if (state_.hysteresis_tracker <= 0) {
      state_.scale = std::max(state_.scale * options_.backoff_factor, options_.min_scale);
    }
    return;
  }
  state_.growth_tracker += 1;
  if (state_.growth_tracker == options_.growth_interval) {
    state_.growth_tracker = 0;
    state_.hysteresis_tracker = options_.hysteresis;
    state_.scale *= options_.growth_factor;
  }
}

void LossScaler::Load(const LossScalerState& state) {
  if (options_.dynamic) state_ = state;
}

}  // namespace muster
