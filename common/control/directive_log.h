// The directives that one trainer holds: a numbered log without gaps at its front (design 2.5).
// They may arrive in any order, late, and more than once; each is handed out exactly once, in
// order, when the agreement of a step (agreement.h) says that every rank holds it. Pure; not
// thread-safe.
//
// Invariant: applied_through() <= gap_free_through().
#pragma once

#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/status.h"
#include "common/control/messages.h"

namespace muster {

class DirectiveLog {
 public:
  // Everything up to `applied_through` was applied before this trainer's assignment.
  explicit DirectiveLog(int64_t applied_through = 0);

  // Stores it. A repeat, and one that was applied already, changes nothing.
  // INVALID_ARGUMENT: a number below 1, or a second directive with the number of another that is
  // still held (the log is append-only; keep the first).
  absl::Status Receive(const Directive& directive);

  // All directives up to this number are here or were applied; what this rank enters into the
  // agreement.
  int64_t gap_free_through() const { return gap_free_through_; }
  int64_t applied_through() const { return applied_through_; }
  // Held beyond a gap: received, not yet usable.
  int64_t num_waiting_for_gap() const;

  // All that is here and not applied, in order, gaps or not.
  std::vector<Directive> held() const;

  // The directives in (applied_through, through], in order; they count as applied from now on.
  // A `through` at or below applied_through() gives none (it never goes back).
  // `through` must not be above gap_free_through(): the agreement never asks for that.
  std::vector<Directive> Apply(int64_t through);
  // The newest that Apply has given out were not acted on: they are held again.
  void TakeBack(const std::vector<Directive>& directives);

 private:
  int64_t applied_through_;
  int64_t gap_free_through_;
  std::map<int64_t, Directive> held_;  // numbers above applied_through_
};

}  // namespace muster
