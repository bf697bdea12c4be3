// An abort, a dead peer, a stopped peer: every waiter is free at once. The promise is 100 ms; on a
// shared machine the tests print what they saw and fail above 1 s only.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <sys/wait.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "tests/support/rank_processes.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/long_wait.h"
#include "worker/comm/node_communicator.h"
#include "worker/comm/thread_communicator.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr int64_t kPromiseMs = 100, kLimitMs = 1000;

void ExpectSoon(const std::string& what, double ms) {
  std::printf("%s: free after %.2f ms (promised %ld, the test fails above %ld)\n", what.c_str(), ms,
              static_cast<long>(kPromiseMs), static_cast<long>(kLimitMs));
  EXPECT_LT(ms, kLimitMs) << what;
}

// The same clock in all processes.
double NowMs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * 1e3 + t.tv_nsec / 1e6;
}

TEST(ThreadAbortTest, FreesEveryRankAndEveryGroup) {
  at::set_num_threads(1);
  std::vector<CommunicatorPtr> world = MakeThreadWorld(4);
  std::atomic<int> waiting{0};
  std::vector<absl::Status> seen(4);
  std::vector<double> freed(4);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 4; ++rank) {
    threads.emplace_back([&, rank] {
      auto pair =
          world[rank]->Split("pair", rank < 2 ? std::vector<int>{0, 1} : std::vector<int>{2, 3});
      at::Tensor t = at::ones({3});
      // Rank 2 is missing in the world, rank 3 in the pair: nobody can finish.
      WorkPtr pending = (rank == 2 ? **pair : *world[rank]).AllReduce(t, ReduceOp::kSum);
      ++waiting;
      if (rank != 3) seen[rank] = pending->Wait();
      if (rank == 3) seen[rank] = (*pair)->SendRecv({{P2POp::Kind::kRecv, t, 0}})->Wait();
      freed[rank] = NowMs();
    });
  }
  while (waiting < 4) std::this_thread::yield();
  const double begin = NowMs();
  world[1]->Abort("the coordinator raised the epoch");
  for (std::thread& thread : threads) thread.join();
  double last = 0;
  for (int rank = 0; rank < 4; ++rank) {
    EXPECT_TRUE(absl::IsAborted(seen[rank])) << rank << " " << seen[rank];
    EXPECT_THAT(std::string(seen[rank].message()), HasSubstr("raised the epoch"));
    last = std::max(last, freed[rank] - begin);
  }
  ExpectSoon("threads", last);
  const absl::Status later = world[0]->Barrier()->Wait();
  EXPECT_TRUE(absl::IsAborted(later)) << later;
  EXPECT_TRUE(absl::IsAborted(world[0]->Split("x", {0, 1}).status()));
}

TEST(ThreadAbortTest, FreesWhatIsPendingOnBothChannels) {
  std::vector<CommunicatorPtr> world = MakeThreadWorld(2, {.blocking_sends = true});
  std::vector<WorkPtr> pending;
  for (int k = 0; k < 20; ++k) {
    for (const int channel : {0, 1}) {
      pending.push_back(world[0]->SendRecv({{P2POp::Kind::kSend, at::ones({1000}), 1, channel},
                                            {P2POp::Kind::kRecv, at::ones({1000}), 1, channel}}));
    }
  }
  EXPECT_FALSE(pending.back()->IsDone());
  std::thread aborter([&] { world[1]->Abort("told so"); });
  for (const WorkPtr& work : pending) EXPECT_EQ(work->Wait(), absl::AbortedError("told so"));
  aborter.join();
}

// Ranks that are processes: over gloo, or sharing memory.
enum class Kind { kGloo, kShared };
void PrintTo(Kind kind, std::ostream* out) { *out << (kind == Kind::kGloo ? "Gloo" : "Shared"); }

absl::StatusOr<CommunicatorPtr> Start(Kind kind, const GlooOptions& options) {
  return kind == Kind::kGloo ? StartGlooWorld(options) : StartNodeWorld({.gloo = options});
}
absl::StatusOr<CommunicatorPtr> Form(Kind kind, const GlooOptions& options) {
  return kind == Kind::kGloo ? FormGlooWorld(options) : FormNodeWorld({.gloo = options});
}

class ProcessAbortTest : public ::testing::TestWithParam<Kind> {
 protected:
  std::string Named(const char* what) const {
    return absl::StrCat(GetParam() == Kind::kGloo ? "gloo, " : "shared memory, ", what);
  }
};

INSTANTIATE_TEST_SUITE_P(Abort, ProcessAbortTest, ::testing::Values(Kind::kGloo, Kind::kShared),
                         [](const auto& info) {
                           return info.param == Kind::kGloo ? "Gloo" : "Shared";
                         });

// Rank 0..size-2 issue `issue` that the last rank never joins, say "ready", and say when they are
// free and with what.
struct Scenario {
  std::function<WorkPtr(Communicator&)> issue;
  // Once all others are ready.
  std::function<void(RankProcesses&)> fault;
  // The control thread of each waiting rank aborts when told so by the parent.
  bool tell_abort = false;
};

void RunScenario(Kind kind, const std::string& name, int size, const Scenario& scenario) {
  const int victim = size - 1;
  RankProcesses ranks(size, [&](RankLink& link) {
    at::set_num_threads(1);
    auto world =
        Form(kind, {.rank = link.rank(), .size = size, .epoch = 1, .store = link.Store(1)});
    if (!world.ok()) return link.Say(absl::StrCat("error ", world.status().ToString()));
    (void)(*world)->Barrier()->Wait();
    if (link.rank() == victim) {
      link.Say("ready");
      link.Hear();  // until killed or told to end
      return;
    }
    const WorkPtr work = scenario.issue(**world);
    std::thread control([&] {
      link.Say("ready");
      if (link.Hear() == "abort") (*world)->Abort("told so");
      link.Hear();
      _exit(0);
    });
    const absl::Status status = work->Wait();
    // Microseconds: StrCat would round a double to six digits.
    link.Say(absl::StrCat("free ", static_cast<int64_t>(NowMs() * 1e3), " ", status.ToString()));
    control.join();
  });
  ranks.store().StartEpoch(1);
  int num_ready = 0, num_free = 0;
  double begin = 0, last = 0;
  std::vector<std::string> errors, said;
  const absl::Time deadline = absl::Now() + absl::Seconds(40);
  while (num_free < victim && errors.empty() && absl::Now() < deadline) {
    ranks.Poll(absl::Milliseconds(5), [&](int rank, const std::string& line) {
      if (line == "ready") {
        ++num_ready;
        return;
      }
      const std::vector<std::string> words = absl::StrSplit(line, absl::MaxSplits(' ', 2));
      int64_t at_us = 0;
      if (words[0] != "free" || !absl::SimpleAtoi(words[1], &at_us)) {
        errors.push_back(line);
        return;
      }
      ++num_free;
      last = std::max(last, at_us / 1e3 - begin);
      said.push_back(words[2]);
    });
    if (num_ready == size && begin == 0) {
      begin = NowMs();
      scenario.fault(ranks);
      if (scenario.tell_abort) {
        for (int rank = 0; rank < victim; ++rank) ranks.Tell(rank, "abort");
      }
    }
  }
  EXPECT_TRUE(errors.empty()) << absl::StrJoin(errors, "\n");
  ASSERT_EQ(num_free, victim) << name << ": a rank hangs";
  ExpectSoon(name, last);
  for (const std::string& status : said) {
    EXPECT_THAT(status, HasSubstr(scenario.tell_abort ? "ABORTED: told so" : "UNAVAILABLE"));
  }
}

WorkPtr BigAllReduce(Communicator& world) {
  return world.AllReduce(at::ones({1 << 20}), ReduceOp::kSum);
}
WorkPtr Receive(Communicator& world) {
  return world.SendRecv({{P2POp::Kind::kRecv, at::ones({1000}), world.size() - 1}});
}
WorkPtr ReceiveOnBothChannels(Communicator& world) {
  const int last = world.size() - 1;
  return world.SendRecv({{P2POp::Kind::kRecv, at::ones({1000}), last, 0},
                         {P2POp::Kind::kSend, at::ones({1 << 20}), last, 1},
                         {P2POp::Kind::kRecv, at::ones({1000}), last, 1}});
}
void DoNothing(RankProcesses&) {}
void KillLast(RankProcesses& ranks) { ranks.Signal(ranks.size() - 1, SIGKILL); }
void StopLast(RankProcesses& ranks) { ranks.Signal(ranks.size() - 1, SIGSTOP); }

TEST_P(ProcessAbortTest, FromAnotherThreadFreesAPendingOperation) {
  RunScenario(GetParam(), Named("abort in an all_reduce"), 3, {BigAllReduce, DoNothing, true});
}
TEST_P(ProcessAbortTest, FromAnotherThreadFreesAPendingReceive) {
  RunScenario(GetParam(), Named("abort in a receive"), 3, {Receive, DoNothing, true});
}
TEST_P(ProcessAbortTest, FromAnotherThreadFreesWhatIsPendingOnBothChannels) {
  RunScenario(GetParam(), Named("abort on both channels"), 3,
              {ReceiveOnBothChannels, DoNothing, true});
}
TEST_P(ProcessAbortTest, ADeadPeerFreesTheOthers) {
  RunScenario(GetParam(), Named("SIGKILL in an all_reduce"), 3, {BigAllReduce, KillLast, false});
}
TEST_P(ProcessAbortTest, ADeadPeerFreesAReceiver) {
  RunScenario(GetParam(), Named("SIGKILL in a receive"), 3, {Receive, KillLast, false});
}
TEST_P(ProcessAbortTest, AbortFreesThoseWhoWaitForAStoppedPeer) {
  RunScenario(GetParam(), Named("SIGSTOP and abort"), 3, {BigAllReduce, StopLast, true});
}

// A group that forms: two of three members have come, the third never does.
TEST_P(ProcessAbortTest, FreesAFormingGroup) {
  auto store = std::make_shared<MapStore>();
  std::vector<std::thread> threads;
  std::vector<CommunicatorPtr> world(2);
  std::vector<absl::Status> seen(2);
  for (int rank = 0; rank < 2; ++rank) {
    auto started = Start(GetParam(), {.rank = rank, .size = 3, .epoch = 1, .store = store});
    ASSERT_TRUE(started.ok()) << started.status();
    world[rank] = *started;
    threads.emplace_back([&, rank] { seen[rank] = world[rank]->Barrier()->Wait(); });
  }
  const double begin = NowMs();
  for (auto& rank : world) rank->Abort("given up");
  for (std::thread& thread : threads) thread.join();
  ExpectSoon(Named("abort while forming"), NowMs() - begin);
  for (const absl::Status& status : seen) EXPECT_EQ(status, absl::AbortedError("given up"));
  store->EndEpoch();  // as the coordinator does; frees the background threads
}

TEST_P(ProcessAbortTest, TheLimitNamesTheOperation) {
  auto store = std::make_shared<MapStore>();
  std::vector<std::thread> threads;
  absl::Status seen;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto world = Form(GetParam(), {.rank = rank,
                                     .size = 2,
                                     .epoch = 1,
                                     .store = store,
                                     .operation_limit = absl::Milliseconds(200)});
      ASSERT_TRUE(world.ok()) << world.status();
      if (rank == 1) {
        // Alive, but elsewhere, until the other has given up.
        (void)(*world)->SendRecv({{P2POp::Kind::kRecv, at::ones({3}), 0}})->Wait();
        return;
      }
      seen = (*world)->AllReduce(at::ones({5}), ReduceOp::kSum)->Wait();
      EXPECT_THAT((*world)->Describe(), HasSubstr("all_reduce 5 float failed after"));
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_FALSE(seen.ok());
  EXPECT_THAT(std::string(seen.message()),
              HasSubstr("group world, sequence 0, all_reduce 5 float (rank 0)"));
}

// What waits for a file may last longer than the limit, and only that.
TEST_P(ProcessAbortTest, ALongWaitOutlastsTheLimit) {
  constexpr absl::Duration kLimit = absl::Milliseconds(300);
  auto store = std::make_shared<MapStore>();
  std::vector<std::thread> threads;
  std::vector<absl::Status> seen(2);
  absl::Status late;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto world =
          Form(GetParam(),
               {.rank = rank, .size = 2, .epoch = 1, .store = store, .operation_limit = kLimit});
      ASSERT_TRUE(world.ok()) << world.status();
      seen[rank] = (*world)->Barrier()->Wait();
      if (rank == 1) absl::SleepFor(2 * kLimit);  // the length of it is what is tested
      {
        const LongWait wait;
        at::Tensor ones = at::ones({5});
        seen[rank].Update((*world)->AllReduce(ones, ReduceOp::kSum)->Wait());
        EXPECT_EQ(ones.sum().item<float>(), 10);
      }
      if (rank == 1) {
        (void)(*world)->SendRecv({{P2POp::Kind::kRecv, at::ones({3}), 0}})->Wait();
        return;
      }
      late = (*world)->AllReduce(at::ones({5}), ReduceOp::kSum)->Wait();
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : seen) EXPECT_TRUE(status.ok()) << status;
  EXPECT_FALSE(late.ok());
}

// A peer that is stopped but not dead is noticed by the limit, on all who wait for it.
TEST(SharedAbortTest, AStoppedPeerIsNoticedByTheLimit) {
  std::vector<std::string> said;
  RankProcesses ranks(3, [&](RankLink& link) {
    at::set_num_threads(1);
    auto world = FormNodeWorld({.gloo = {.rank = link.rank(),
                                         .size = 3,
                                         .epoch = 1,
                                         .store = link.Store(1),
                                         .operation_limit = absl::Milliseconds(300)}});
    if (!world.ok()) return link.Say(world.status().ToString());
    (void)(*world)->Barrier()->Wait();
    link.Say("ready");
    link.Hear();
    link.Say((*world)->AllReduce(at::ones({1 << 20}), ReduceOp::kSum)->Wait().ToString());
    link.Hear();
  });
  ranks.store().StartEpoch(1);
  int num_ready = 0;
  const absl::Time deadline = absl::Now() + absl::Seconds(40);
  while (said.size() < 2 && absl::Now() < deadline) {
    ranks.Poll(absl::Milliseconds(5), [&](int, const std::string& line) {
      if (line != "ready") return said.push_back(line);
      if (++num_ready < 3) return;
      ranks.Signal(2, SIGSTOP);
      ranks.Tell(0, "go");
      ranks.Tell(1, "go");
    });
  }
  ASSERT_EQ(said.size(), 2);
  // The second may see the first give up.
  EXPECT_THAT(said[0], HasSubstr("DEADLINE_EXCEEDED: group world, sequence 1, all_reduce"));
  EXPECT_THAT(said[0], HasSubstr("waiting for ranks 2"));
  EXPECT_THAT(said[1], ::testing::AnyOf(HasSubstr("DEADLINE_EXCEEDED"), HasSubstr("UNAVAILABLE")));
}

std::vector<std::string> NamesIn(const std::vector<std::string>& folders) {
  std::vector<std::string> names;
  for (const std::string& folder : folders) {
    std::error_code error;
    for (const auto& entry : std::filesystem::directory_iterator(folder, error)) {
      names.push_back(entry.path().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Whatever dies, nothing of it stays: the memory has no name, the sockets' names are the kernel's.
TEST(SharedAbortTest, KilledRanksLeaveNothingBehind) {
  const std::vector<std::string> folders = {"/dev/shm", "/dev/mqueue", "/run/shm"};
  const std::vector<std::string> before = NamesIn(folders);
  {
    RankProcesses ranks(4, [&](RankLink& link) {
      at::set_num_threads(1);
      // Its own, so that what others put into /tmp meanwhile does not count.
      const auto listed = NamesIn({absl::StrCat("/proc/", getpid(), "/fd")});
      auto world = FormNodeWorld(
          {.gloo = {.rank = link.rank(), .size = 4, .epoch = 1, .store = link.Store(1)}});
      if (!world.ok()) return link.Say(world.status().ToString());
      at::Tensor tensor = at::ones({1 << 20});
      (void)(*world)->AllReduce(tensor, ReduceOp::kSum)->Wait();
      for (const std::string& name : NamesIn({absl::StrCat("/proc/", getpid(), "/fd")})) {
        if (std::count(listed.begin(), listed.end(), name) != 0) continue;
        std::error_code error;
        const std::string target = std::filesystem::read_symlink(name, error).string();
        const bool nameless = absl::StrContains(target, "memfd:") ||
                              absl::StrContains(target, "socket:") ||
                              absl::StrContains(target, "anon_inode:");
        if (!error && !nameless) link.Say(absl::StrCat("opened ", target));
      }
      link.Say("ready");
      for (;;) (void)(*world)->AllReduce(tensor, ReduceOp::kSum)->Wait();
    });
    ranks.store().StartEpoch(1);
    int num_ready = 0;
    std::vector<std::string> complaints;
    const absl::Time deadline = absl::Now() + absl::Seconds(40);
    while (num_ready < 4 && complaints.empty() && absl::Now() < deadline) {
      ranks.Poll(absl::Milliseconds(5), [&](int, const std::string& line) {
        line == "ready" ? void(++num_ready) : complaints.push_back(line);
      });
    }
    EXPECT_TRUE(complaints.empty()) << absl::StrJoin(complaints, "\n");
    EXPECT_EQ(num_ready, 4);
    EXPECT_EQ(NamesIn(folders), before) << "while they run";
    for (int rank = 0; rank < 4; ++rank) ranks.Signal(rank, SIGKILL);
    for (int rank = 0; rank < 4; ++rank) ranks.Remove(rank);
  }
  EXPECT_EQ(NamesIn(folders), before) << "after their death";
  EXPECT_EQ(waitpid(-1, nullptr, WNOHANG), -1) << "a process is left";
}

}  // namespace
}  // namespace muster
