// Operations behind which ranks wait for files of each other: how long a save or a load takes is
// nobody's fault of communication. While a LongWait lives, what its thread issues, in any group,
// may take at least that long, however short the groups' own limit is.
//
// The bound lies above the coordinator's own limits of those phases (an hour), which name who is
// missing; a peer that dies, or one that is stopped, is found as at any other time.
#pragma once

#include "absl/time/time.h"

namespace muster {

class LongWait {
 public:
  static constexpr absl::Duration kForFiles = absl::Hours(2);

  explicit LongWait(absl::Duration limit = kForFiles);
  ~LongWait();
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;

  // Of an operation that this thread issues now: its group's, or that of the LongWait that lives.
  static absl::Duration LimitOf(absl::Duration group_limit);

 private:
  const absl::Duration before_;
};

}  // namespace muster
