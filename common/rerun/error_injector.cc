#include "common/rerun/error_injector.h"

#include <limits>

#include "absl/strings/str_cat.h"
#include "common/rerun/rerun_machine.h"

namespace muster {

absl::string_view InjectedErrorName(InjectedError error) {
  switch (error) {
    case InjectedError::kTransient:
      return "transient_error";
    case InjectedError::kPersistent:
      return "persistent_error";
    case InjectedError::kCorrectResult:
      return "correct_result";
  }
  return "";
}

absl::StatusOr<InjectedError> ParseInjectedError(absl::string_view name) {
  for (const InjectedError error :
       {InjectedError::kTransient, InjectedError::kPersistent, InjectedError::kCorrectResult}) {
    if (name == InjectedErrorName(error)) return error;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("rerun.error_injection_type='", name,
                   "': must be one of transient_error, persistent_error, correct_result"));
}

bool ErrorInjector::MaybeInject(int rank) {
  if (options_.rate <= 0 || pending_.has_value()) return false;
  // No std::uniform_int_distribution: its numbers differ between libraries.
  const auto rate = static_cast<uint64_t>(options_.rate);
  if ((random_() % rate + static_cast<uint64_t>(rank)) % rate != 0) return false;
  pending_ = options_.type;
  return true;
}

std::optional<double> ErrorInjector::MaybeMiscompare(RerunState state) {
  if (!pending_.has_value()) return std::nullopt;
  constexpr double kDiffers = std::numeric_limits<double>::infinity();
  if (state == RerunState::kRerunningInPlace) {
    if (*pending_ != InjectedError::kTransient) return 0;
    pending_.reset();
    return kDiffers;
  }
  const bool persistent = *pending_ == InjectedError::kPersistent;
  pending_.reset();
  return persistent ? kDiffers : 0;
}

}  // namespace muster
