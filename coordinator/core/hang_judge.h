// Who hangs, from what two probes of all trainers of a job have found, half a second apart. Both
// must agree before anybody is accused: a culprit's trainer is killed. Pure.
//
//   1 an iteration rose between them, or is beyond what is known: it goes on, and nobody hangs.
//   2 a process that is stopped (T), and one that neither answers nor uses its CPU: culprits.
//   3 else, where all have answered: who has not arrived in an operation that others wait in, does
//     not wait itself, and does not compute, is a culprit. One that computes is slow, and nobody
//     hangs. An agent that is not heard may hold the one that others wait for, so that then nobody
//     is accused (silence.h finds it).
//   4 else nobody: a deadlock, a network that stands still, a device.
//
// Operations of one group are told apart by their sequence numbers, which are the same on all of
// its members; but those of sends and receives are not, and whoever has one under way waits for
// any member that does not.
#pragma once

#include <optional>
#include <set>
#include <string>
#include <vector>

#include "absl/time/time.h"
#include "coordinator/core/types.h"

namespace muster {

struct HangProbe {
  int64_t request = 0;
  std::vector<std::optional<ProbeReport>> reports;  // by rank; none: its agent has said nothing
};

struct HangOptions {
  // A thread that has used this much between two probes computes. The process as a whole: where its
  // other threads do not spin while they wait, as those of NCCL do.
  absl::Duration busy_thread = absl::Milliseconds(10);
  absl::Duration busy_process = absl::Milliseconds(50);
  bool count_process = true;
  bool judge_arrivals = true;  // 3: the wait is one of steps, whose length is known
  int64_t committed = 0;       // iterations that are known to be committed
  // Ranks that cannot answer (they have not started) or need not: only a stopped process counts.
  std::set<int> may_be_silent = {};
};

struct HangVerdict {
  enum class Kind {
    kProgress,  // 1
    kHang,      // 2, 3: culprits
    kSlow,      // 3: others wait for one that computes
    kUnclear,   // 4
  };
  struct Culprit {
    int rank = 0;
    std::string
        reason;  // "is stopped (state T)", "does not answer (state S)", "has not arrived..."
    bool operator==(const Culprit&) const = default;
  };
  Kind kind = Kind::kUnclear;
  std::vector<Culprit> culprits;  // by rank
  std::vector<int> slow;          // kSlow: who computes while all others wait
  // "rank 3 is stopped (state T)"; "rank 2 computes, others wait for it"; "nobody is missing: ..."
  std::string summary;
  // Of each group that waits: "dp (ranks 0-3) all_reduce 64 x float, number 118: ranks 0-2 wait for
  // 1.4s; missing: rank 3 (at 117, done)". Bounded.
  std::string arrivals;
  int64_t iteration = 0;  // the highest that a trainer has named
};

HangVerdict JudgeHang(const HangProbe& first, const HangProbe& second, const HangOptions& options);

}  // namespace muster
