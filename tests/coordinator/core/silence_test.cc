#include "coordinator/core/silence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace muster {
namespace {

using testing::HasSubstr;

absl::Duration S(double seconds) { return absl::Seconds(seconds); }

// Times in seconds before now; progress < 0: none was ever seen.
struct Row {
  const char* name;
  double quiet;
  double closed;  // < 0: its stream is open, or was closed when it was stale
  bool trains;
  double progress;
  double patience;
  bool others_heard;
  bool lost;
  const char* reason;
  double heard_for = 1000;  // others_heard: for so long
};

TEST(SilenceTest, Rules) {
  const Row rows[] = {
      {"a: idle", 1.6, -1, false, -1, 0, false, true, "no sign of life for 1.6s"},
      {"a: idle, stream gone", 1.6, 1.6, false, -1, 0, false, true, "its stream is gone"},
      {"a: idle whoever else is heard", 1.6, -1, false, -1, 0, true, true, "no sign of life"},
      {"b: steps advance", 30, -1, true, 0.3, 10, true, false, "its job makes progress"},
      {"b: steps advance, heard from nobody else", 30, -1, true, 0.3, 10, false, false,
       "makes progress"},
      {"b: steps are long", 90, -1, true, 9, 10, true, false, "makes progress"},
      {"b: only before the silence", 30, -1, true, 31, 10, true, true,
       "its job has made no progress for 30s"},
      {"c: the process died", 1.6, 1.6, true, -1, 10, true, true, "its stream ended 1.6s ago"},
      {"c: and was the only one", 1.6, 1.6, true, -1, 10, false, true, "did not come back"},
      {"c: a step in flight was committed yet", 2.6, 2.6, true, 1.6, 600, true, true,
       "its stream ended 2.6s ago"},
      {"c: that step is fresh", 1.6, 1.6, true, 0.2, 10, true, false, "makes progress"},
      {"c: its trainers outlived it", 30, 30, true, 5, 10, true, false, "makes progress"},
      {"c: then d", 30, 30, true, 11, 10, true, true, "no progress for 11s"},
      {"d: others wait for it", 12, -1, true, -1, 10, true, true, "no progress for 12s"},
      {"d: not yet", 9, -1, true, -1, 10, true, false, "kept until its job has made no progress"},
      {"d: at least the timeout", 1.6, -1, true, -1, 0.1, true, true, "no progress"},
      {"d: not while we were cut off from all", 34, -1, true, -1, 10, true, false,
       "kept until its job has made no progress", 0.1},
      {"d: the same once they have been heard again for so long", 45, -1, true, -1, 10, true, true,
       "no progress for 11s", 11},
      {"e: cut off", 59, -1, true, -1, 10, false, false, "network"},
      {"e: for too long", 61, -1, true, -1, 10, false, true, "nobody else of its job was heard"},
  };
  const absl::Time now = absl::FromUnixSeconds(1'700'000'000);
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    Silence silence{
        .now = now,
        .last_sign = now - S(row.quiet),
        .timeout = S(1.5),
        .trains = row.trains,
        .last_progress = row.progress < 0 ? absl::InfinitePast() : now - S(row.progress),
        .patience = S(row.patience),
        .others_heard = row.others_heard,
        .heard_since = now - S(row.heard_for),
        .limit = S(60)};
    if (row.closed >= 0) silence.closed_at = now - S(row.closed);
    const SilenceDecision decision = DecideSilence(silence);
    EXPECT_EQ(decision.lost, row.lost);
    EXPECT_THAT(decision.reason, HasSubstr(row.reason));
  }
}

}  // namespace
}  // namespace muster
