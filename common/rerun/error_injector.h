// Errors that a test wants to see: a check says "rejected" although the result is good, and the
// reruns compare as the wanted kind of error would make them (reference 13.7). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <random>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace muster {

enum class RerunState;

enum class InjectedError { kTransient, kPersistent, kCorrectResult };
// "transient_error", "persistent_error", "correct_result", as in the spec.
absl::string_view InjectedErrorName(InjectedError error);
absl::StatusOr<InjectedError> ParseInjectedError(absl::string_view name);

struct ErrorInjectorOptions {
  int64_t rate = 0;  // one error in about so many checks; 0: none
  InjectedError type = InjectedError::kTransient;
  uint64_t seed = 0;  // the same on all ranks, which then take turns
};

class ErrorInjector {
 public:
  explicit ErrorInjector(const ErrorInjectorOptions& options)
      : options_(options), random_(options.seed) {}

  // At a check of an initial run: shall it reject? Not while an error is pending.
  bool MaybeInject(int rank);
  // What the comparison shall say in place of the truth; nullopt: nothing is pending. Ends an error
  // whose kind has shown itself.
  std::optional<double> MaybeMiscompare(RerunState state);

  const ErrorInjectorOptions& options() const { return options_; }
  const std::optional<InjectedError>& pending() const { return pending_; }
  void set_pending(std::optional<InjectedError> pending) { pending_ = pending; }

 private:
  const ErrorInjectorOptions options_;
  std::mt19937_64 random_;
  std::optional<InjectedError> pending_;
};

}  // namespace muster
