#include "cli/event_lines.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

using testing::ElementsAre;

v1::Event Event(const std::string& kind, const std::string& text) {
  v1::Event event;
  event.set_kind(kind);
  event.set_text(text);
  return event;
}

TEST(EventLinesTest, WhatSomebodyWhoWatchesMustSee) {
  struct Row {
    const char *kind, *text, *line;
  };
  const Row rows[] = {
      {"hang", "phase step: no progress for 3s: rank 1 stands still",
       "hang: phase step: no progress for 3s: rank 1 stands still"},
      {"recovering", "rank 1 (worker b/0, node b): the trainer was killed by signal 9 (SIGKILL)",
       "failed, recovers: rank 1 (worker b/0, node b): the trainer was killed by signal 9 "
       "(SIGKILL)"},
      {"restarting", "epoch 2: rank 1 in place on b/0",
       "starts again, epoch 2: rank 1 in place on b/0"},
      {"recovered",
       "rank 1 in place on b/0; total=0.3s abort=0s plan=0s process=0.3s form=0.06s state=0.02s "
       "first_step=0s; from snapshot state at iteration 3, steps_redone=2",
       "recovered after 0.3s: rank 1 in place on b/0, from snapshot state at iteration 3, 2 steps "
       "run again"},
      {"recovered",
       "all trainers live; total=1.85s abort=0s; from live state at iteration 9, "
       "steps_redone=0",
       "recovered after 1.85s: all trainers live, from live state at iteration 9"},
      {"reformed",
       "worker b/0 is drained; total=0.2s abort=0s; from live state at iteration 4, "
       "steps_redone=0",
       "goes on after 0.2s: worker b/0 is drained, from live state at iteration 4"},
      {"recovered", "in words of another version", "recovered: in words of another version"},
      {"waiting", "needs 2 cpu workers and has 1: waits for 1 more",
       "waits: needs 2 cpu workers and has 1: waits for 1 more"},
      {"drain_waits", "drain waits: no spare and no idle worker for rank 1 (worker b/0)",
       "drain waits: no spare and no idle worker for rank 1 (worker b/0)"},
      {"suspect", "node b (workers b/0-1): no heartbeat for 1.3s",
       "silent: node b (workers b/0-1): no heartbeat for 1.3s"},
      {"heard_again", "node b (workers b/0-1) is heard again",
       "node b (workers b/0-1) is heard again"},
      {"straggler", "rank 1 (worker b/0, node b), compute: 2x the others",
       "slow: rank 1 (worker b/0, node b), compute: 2x the others"},
      {"quarantined", "worker b/0: another fingerprint",
       "quarantine: worker b/0: another fingerprint"},
      {"checkpoint_failed", "iteration 9 to /x: No space left on device",
       "a save failed: iteration 9 to /x: No space left on device"},
      {"rerun_persistent", "rank 1 of iteration 8", "rerun, persistent: rank 1 of iteration 8"},
      {"trainer_exited", "the trainer was killed", ""},
      {"checkpoint", "iteration 9 saved to /x", ""},
  };
  for (const Row& row : rows) EXPECT_EQ(WatchLine(Event(row.kind, row.text)), row.line);
}

TEST(EventLinesTest, OfManyAtOnceTheNewestAreShown) {
  google::protobuf::RepeatedPtrField<v1::Event> events;
  for (int i = 0; i < 5; ++i) {
    *events.Add() = Event("checkpoint", "x");
    *events.Add() = Event("heard_again", absl::StrCat("node ", i, " is heard again"));
  }
  EXPECT_THAT(WatchLines(events, "job-1", 2),
              ElementsAre("3 events before these: muster events job-1", "node 3 is heard again",
                          "node 4 is heard again"));
  EXPECT_EQ(WatchLines(events, "job-1", 5).size(), 5u);
}

}  // namespace
}  // namespace muster
