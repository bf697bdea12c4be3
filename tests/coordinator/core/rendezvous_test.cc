#include "coordinator/core/rendezvous.h"

#include <gtest/gtest.h>

namespace muster {
namespace {

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);

SetKey Set(const std::string& job, int64_t epoch, const std::string& key) {
  return {.job_id = job, .epoch = epoch, .key = key, .value = "v"};
}

TEST(RendezvousTest, KeysOfAnOlderEpochAreNeverSeen) {
  Rendezvous rendezvous({});
  std::vector<Action> done;
  rendezvous.Begin("j", 1, &done);
  ASSERT_TRUE(rendezvous.Set(Set("j", 1, "k"), &done).ok());
  rendezvous.Begin("j", 2, &done);
  ASSERT_TRUE(rendezvous
                  .Wait({.token = 1,
                         .job_id = "j",
                         .epoch = 2,
                         .prefix = "k",
                         .count = 1,
                         .limit = absl::Seconds(1)},
                        kNow, &done)
                  .ok());
  EXPECT_TRUE(done.empty());
}

TEST(RendezvousTest, StaleEpochIsAborted) {
  Rendezvous rendezvous({});
  std::vector<Action> done;
  EXPECT_EQ(rendezvous.Set(Set("j", 1, "k"), &done).code(), absl::StatusCode::kAborted);
  rendezvous.Begin("j", 2, &done);
  for (const int64_t epoch : {1, 3}) {
    EXPECT_EQ(rendezvous.Set(Set("j", epoch, "k"), &done).code(), absl::StatusCode::kAborted);
    EXPECT_EQ(rendezvous.Wait({.token = 1, .job_id = "j", .epoch = epoch, .count = 1}, kNow, &done)
                  .code(),
              absl::StatusCode::kAborted);
  }
}

TEST(RendezvousTest, EndOfTheEpochFreesAllWhoWait) {
  Rendezvous rendezvous({});
  std::vector<Action> done;
  rendezvous.Begin("j", 1, &done);
  rendezvous.Begin("other", 1, &done);
  for (const WaitToken token : {1, 2}) {
    ASSERT_TRUE(rendezvous
                    .Wait({.token = token,
                           .job_id = token == 1 ? "j" : "other",
                           .epoch = 1,
                           .prefix = "k",
                           .count = 1,
                           .limit = absl::Seconds(50)},
                          kNow, &done)
                    .ok());
  }
  rendezvous.End("j", "rank 1 died", &done);
  ASSERT_EQ(done.size(), 1u);
  EXPECT_EQ(std::get<WaitDone>(done[0]).token, 1u);
  EXPECT_EQ(std::get<WaitDone>(done[0]).status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(rendezvous.epoch("j"), 0);
  EXPECT_EQ(rendezvous.epoch("other"), 1);
}

}  // namespace
}  // namespace muster
