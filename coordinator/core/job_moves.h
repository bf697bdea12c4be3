// A change of places that was asked for while a job trains: a drain, a replacement, growth, an
// exchange of two ranks for a rerun. All ranks stop at the same step's boundary with their state in
// memory, so no committed step is lost.
//
//   kWarming -1-> kYielding -2-> (the epoch is raised)
//   1 the spares that it needs are warm, or `warm_limit` has passed: directive kReform.
//   2 all ranks say "yielded", or `yield_limit` has passed: then the epoch is aborted anyway.
//   A failure on the way ends the change; whoever asked for it asks again if it is still wanted.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/time/time.h"

namespace muster {

struct RankMove {
  int rank = 0;
  std::string from, to;  // workers
  bool operator==(const RankMove&) const = default;
};

struct PlannedChange {
  enum class Kind { kMove, kGrow, kReform };  // kReform: the same places, a new epoch
  enum class Stage { kWarming, kYielding };
  Kind kind = Kind::kMove;
  Stage stage = Stage::kWarming;
  std::string reason;              // "worker n1/0 is drained"
  std::vector<RankMove> moves;     // kMove: the last word of each rank; two ranks may change places
  int64_t data_parallel_size = 0;  // kGrow
  std::vector<std::string> needs_spares;  // workers that must be warm
  std::string examine_json;               // for the new epoch
  int64_t directive = 0;                  // kYielding: its number
  absl::Time deadline;                    // of the stage
  bool overdue = false;                   // some ranks did not yield in time
};

}  // namespace muster
