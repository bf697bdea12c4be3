// The numbered log of a job's directives (design 2.5): 1, 2, ... without gaps, kept as long as the
// job. Trainers act on them at a step boundary and say with each step through which one they have.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "common/control/messages.h"

namespace muster {

class DirectiveLog {
 public:
  // RESOURCE_EXHAUSTED when too many are not applied yet, or the log is full.
  // The directive's number is given here.
  absl::StatusOr<Directive> Append(Directive directive);

  // Reported by a trainer. Numbers that were not given out are ignored; it never goes back.
  void Applied(int64_t through);

  // Into an empty log. Entry i must have number i + 1, and 0 <= applied <= log.size().
  void Restore(std::vector<Directive> log, int64_t applied) {
    log_ = std::move(log);
    applied_ = applied;
  }

  // Those with a number above `through`, in order.
  std::vector<Directive> After(int64_t through) const;

  // The newest that ends the job; nullptr: none does.
  const Directive* LastStop() const;

  int64_t last() const { return static_cast<int64_t>(log_.size()); }
  int64_t applied() const { return applied_; }

  static constexpr int64_t kMaxPending = 64;
  static constexpr int64_t kMaxLog = 100'000;

 private:
  std::vector<Directive> log_;  // entry i has number i + 1
  int64_t applied_ = 0;         // <= last()
};

const char* DirectiveKindName(Directive::Kind kind);

}  // namespace muster
