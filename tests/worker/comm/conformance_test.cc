// One suite over every backend. Each case is a process: the ranks are its threads or its forks.
#include "tests/worker/comm/conformance.h"

#include <ATen/ATen.h>
#include <ATen/Parallel.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <thread>
#include <tuple>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/support/rank_processes.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/node_communicator.h"
#include "worker/comm/self_communicator.h"
#include "worker/comm/tensor_checks.h"
#include "worker/comm/thread_communicator.h"

namespace muster {
namespace {

// kShared: all ranks share memory. kNodes: pairs of ranks do, and use gloo with the others.
enum class Backend { kThreads, kThreadsBlocking, kGloo, kShared, kNodes };

const char* NameOf(Backend backend) {
  switch (backend) {
    case Backend::kThreads:
      return "Threads";
    case Backend::kThreadsBlocking:
      return "ThreadsBlocking";
    case Backend::kGloo:
      return "Gloo";
    case Backend::kShared:
      return "Shared";
    case Backend::kNodes:
      return "Nodes";
  }
  return "?";
}

void PrintTo(Backend backend, std::ostream* out) { *out << NameOf(backend); }

std::vector<std::string> RunThreads(int size, bool blocking, const RankBody& body) {
  at::set_num_threads(1);
  std::vector<CommunicatorPtr> world =
      MakeThreadWorld(size, {.blocking_sends = blocking, .operation_limit = absl::Seconds(30)});
  std::vector<Complaints> complaints(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { body(*world[rank], complaints[rank]); });
  }
  for (std::thread& thread : threads) thread.join();
  std::vector<std::string> lines;
  for (int rank = 0; rank < size; ++rank) {
    for (const std::string& line : complaints[rank].lines()) {
      lines.push_back(absl::StrCat("rank ", rank, ": ", line));
    }
  }
  return lines;
}

using FormWorld = std::function<absl::StatusOr<CommunicatorPtr>(const GlooOptions& options)>;

std::vector<std::string> RunProcesses(int size, const RankBody& body, const FormWorld& form,
                                      bool check_collectives = false) {
  return RunForked(size, [&](RankLink& link) {
    at::set_num_threads(1);
    auto world = form({.rank = link.rank(),
                       .size = size,
                       .epoch = 1,
                       .store = link.Store(1),
                       .form_limit = absl::Seconds(30),
                       .operation_limit = absl::Seconds(30),
                       .check_collectives = check_collectives});
    if (!world.ok()) return link.Say(world.status().ToString());
    Complaints complaints;
    body(**world, complaints);
    // Whoever leaves first closes its connections.
    (void)(*world)->Barrier()->Wait();
    for (const std::string& line : complaints.lines()) link.Say(line);
  });
}

std::vector<std::string> Run(Backend backend, int size, const RankBody& body) {
  switch (backend) {
    case Backend::kGloo:
      return RunProcesses(size, body, FormGlooWorld);
    case Backend::kShared:
      return RunProcesses(
          size, body, [](const GlooOptions& options) { return FormNodeWorld({.gloo = options}); });
    case Backend::kNodes:
      return RunProcesses(size, body, [](const GlooOptions& options) {
        return FormNodeWorld({.gloo = options, .node = absl::StrCat(options.rank / 2)});
      });
    case Backend::kThreads:
    case Backend::kThreadsBlocking:
      break;
  }
  return RunThreads(size, backend == Backend::kThreadsBlocking, body);
}

void ExpectNoComplaints(Backend backend, int size, const RankBody& body) {
  const std::vector<std::string> lines = Run(backend, size, body);
  EXPECT_TRUE(lines.empty()) << absl::StrJoin(lines, "\n");
}

class CollectivesTest : public ::testing::TestWithParam<std::tuple<Backend, int, at::ScalarType>> {
};

TEST_P(CollectivesTest, GiveWhatTheContractSays) {
  const auto [backend, size, dtype_] = GetParam();
  const at::ScalarType dtype = dtype_;
  ExpectNoComplaints(backend, size, [&](Communicator& world, Complaints& complaints) {
    CheckCollectives(world, dtype, at::kCPU, complaints);
    CheckPointToPoint(world, dtype, at::kCPU, complaints);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, CollectivesTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kGloo, Backend::kShared),
                       ::testing::Values(1, 2, 3, 4, 8),
                       ::testing::Values(at::kFloat, at::kBFloat16, at::kLong)),
    [](const auto& info) {
      return absl::StrCat(NameOf(std::get<0>(info.param)), std::get<1>(info.param),
                          DtypeName(std::get<2>(info.param)));
    });

// The other types that the engine uses: small sizes suffice.
void CheckOtherTypes(Communicator& world, Complaints& complaints) {
  for (const auto dtype : {at::kDouble, at::kHalf, at::kInt}) {
    at::Tensor t = at::full({5}, world.rank() + 1, dtype);
    complaints.ExpectOk(world.AllReduce(t, ReduceOp::kSum)->Wait(), DtypeName(dtype));
    complaints.ExpectEqual(t, at::full({5}, world.size() * (world.size() + 1) / 2),
                           DtypeName(dtype));
  }
  at::Tensor bytes = at::full({5}, 10 * (world.rank() + 1), at::kByte);
  complaints.ExpectOk(world.AllReduce(bytes, ReduceOp::kMax)->Wait(), "uint8");
  complaints.ExpectEqual(bytes, at::full({5}, 10 * world.size()), "uint8");
  at::Tensor flags = at::zeros({4}, at::kBool);
  flags[world.rank() % 4] = true;
  flags[3] = true;
  complaints.ExpectOk(world.AllReduce(flags, ReduceOp::kSum)->Wait(), "bool");
  complaints.Expect(flags.scalar_type() == at::kBool &&
                        flags.to(at::kLong).sum().item<int64_t>() == std::min(4, world.size() + 1),
                    "a sum of bools is or");
}

class CommunicatorTest : public ::testing::TestWithParam<std::tuple<Backend, int>> {
 protected:
  Backend backend() const { return std::get<0>(GetParam()); }
  int size() const { return std::get<1>(GetParam()); }
};

TEST_P(CommunicatorTest, OperationsOverlapAndSplitGroupsWork) {
  ExpectNoComplaints(backend(), size(), [](Communicator& world, Complaints& complaints) {
    CheckPending(world, at::kCPU, complaints);
    CheckChannels(world, at::kCPU, complaints);
    CheckSplit(world, at::kCPU, complaints);
    CheckRepeatedBits(world, at::kCPU, complaints);
    CheckOtherTypes(world, complaints);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Conformance, CommunicatorTest,
    ::testing::Combine(::testing::Values(Backend::kThreads, Backend::kThreadsBlocking,
                                         Backend::kGloo, Backend::kShared, Backend::kNodes),
                       ::testing::Values(1, 2, 3, 4)),
    [](const auto& info) {
      return absl::StrCat(NameOf(std::get<0>(info.param)), std::get<1>(info.param));
    });

// Forks first: threads come later.
TEST(RefusalsTest, BadCallsAreRefusedByEveryBackend) {
  for (const Backend backend : {Backend::kGloo, Backend::kShared, Backend::kThreads}) {
    for (const int size : {1, 2}) {
      ExpectNoComplaints(backend, size, [](Communicator& world, Complaints& complaints) {
        CheckRefusals(world, at::kCPU, complaints);
      });
    }
  }
}

TEST(RefusalsTest, AChannelThatIsNoneIsRefused) {
  for (const int size : {1, 2}) {
    const auto world = MakeThreadWorld(size);
    const CommunicatorPtr self = size == 1 ? MakeSelfCommunicator("self", 0) : world[0];
    for (const int channel : {-1, kNumP2PChannels}) {
      const absl::Status status =
          self->SendRecv({{P2POp::Kind::kSend, at::ones({3}), 0, channel}})->Wait();
      EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
      EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("channel="));
    }
  }
}

TEST(ThreadCommunicatorTest, MismatchIsAnErrorOnAllNotAHang) {
  std::vector<absl::Status> seen(3);
  RunThreads(3, false, [&](Communicator& world, Complaints&) {
    at::Tensor t = at::ones({world.rank() == 1 ? 4 : 3});
    seen[world.rank()] = world.AllReduce(t, ReduceOp::kSum)->Wait();
  });
  for (const absl::Status& status : seen) {
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    EXPECT_THAT(std::string(status.message()), ::testing::HasSubstr("mismatch"));
  }
}

// Gloo itself ends the process, hangs, or notices nothing. Whoever sees the mismatch first may
// leave before the others have compared: these then see it go.
TEST(GlooCommunicatorTest, CheckedMismatchIsAnErrorOnAll) {
  const std::vector<std::function<WorkPtr(Communicator&)>> wrong = {
      [](Communicator& world) {  // rank 1's size differs
        return world.AllReduce(at::ones({world.rank() == 1 ? 100'000 : 3}), ReduceOp::kSum);
      },
      [](Communicator& world) {  // rank 2 does something else
        at::Tensor t = at::ones({30});
        return world.rank() == 2 ? world.Broadcast(t, 0) : world.AllReduce(t, ReduceOp::kSum);
      },
      [](Communicator& world) {  // rank 0 sends more than is expected
        const int64_t extra = world.rank() == 0 ? 5 : 1;
        return world.AllToAll(at::ones({3}), at::ones({2 + extra}), {1, 1, 1}, {1, 1, extra});
      }};
  for (const auto& issue : wrong) {
    std::vector<std::string> seen = RunForked(3, [&](RankLink& link) {
      auto world = FormGlooWorld({.rank = link.rank(),
                                  .size = 3,
                                  .epoch = 1,
                                  .store = link.Store(1),
                                  .operation_limit = absl::Seconds(20),
                                  .check_collectives = true});
      if (!world.ok()) return link.Say(world.status().ToString());
      at::Tensor fine = at::ones({4});
      if (!(*world)->AllReduce(fine, ReduceOp::kSum)->Wait().ok()) return link.Say("the good one");
      link.Say(issue(**world)->Wait().ToString());
    });
    ASSERT_EQ(seen.size(), 3) << absl::StrJoin(seen, "\n");
    int num_named = 0;
    for (const std::string& line : seen) {
      EXPECT_THAT(line, ::testing::AnyOf(::testing::HasSubstr("INVALID_ARGUMENT"),
                                         ::testing::HasSubstr("UNAVAILABLE")));
      num_named += line.find("INVALID_ARGUMENT: group world, sequence 1") != std::string::npos;
    }
    EXPECT_GE(num_named, 1) << absl::StrJoin(seen, "\n");
  }
}

// Checking changes nothing for those who agree.
TEST(GlooCommunicatorTest, CheckedCollectivesPassTheSuite) {
  const auto lines = RunProcesses(
      3,
      [](Communicator& world, Complaints& complaints) {
        CheckCollectives(world, at::kFloat, at::kCPU, complaints);
        CheckPending(world, at::kCPU, complaints);
        CheckSplit(world, at::kCPU, complaints);
      },
      FormGlooWorld, /*check_collectives=*/true);
  EXPECT_TRUE(lines.empty()) << absl::StrJoin(lines, "\n");
}

// What a group costs the rendezvous: equal groups share one, and groups of one need none.
TEST(GlooCommunicatorTest, OneSetAndOneFetchAGroup) {
  auto store = std::make_shared<MapStore>();
  std::vector<std::thread> threads;
  std::vector<absl::Status> seen(2);
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      auto world = FormGlooWorld({.rank = rank, .size = 2, .epoch = 1, .store = store});
      seen[rank] = world.status();
      if (!world.ok()) return;
      auto unused = (*world)->Split("unused", {1, 0});
      auto same = (*world)->Split("same", {0, 1});
      auto alone = (*world)->Split("alone", {rank});
      for (auto* group : {&*world, &*same, &*alone}) {
        at::Tensor t = at::ones({3});
        seen[rank].Update((*group)->AllReduce(t, ReduceOp::kSum)->Wait());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (const absl::Status& status : seen) EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(store->num_sets(), 2);
  EXPECT_EQ(store->num_waits(), 2);
}

TEST(GlooCommunicatorTest, AMissingMemberIsNamedWithinTheLimit) {
  auto store = std::make_shared<MapStore>();
  const auto world = FormGlooWorld(
      {.rank = 0, .size = 3, .epoch = 1, .store = store, .form_limit = absl::Milliseconds(50)});
  EXPECT_TRUE(absl::IsDeadlineExceeded(world.status())) << world.status();
  EXPECT_THAT(std::string(world.status().message()), ::testing::HasSubstr("group world"));
}

TEST(GlooCommunicatorTest, AnEpochThatEndsFreesTheForming) {
  auto store = std::make_shared<MapStore>();
  std::thread ender([&] { store->EndEpoch(); });
  const auto world = FormGlooWorld({.rank = 0, .size = 3, .epoch = 1, .store = store});
  ender.join();
  EXPECT_TRUE(absl::IsAborted(world.status())) << world.status();
}

TEST(GlooCommunicatorTest, OptionsAreChecked) {
  EXPECT_TRUE(absl::IsInvalidArgument(FormGlooWorld({.rank = 3, .size = 3}).status()));
  EXPECT_TRUE(absl::IsInvalidArgument(FormGlooWorld({.rank = 0, .size = 3}).status()));
  auto store = std::make_shared<MapStore>();
  const auto world = FormGlooWorld({.rank = 0, .size = 2, .store = store, .host = "203.0.113.7"});
  EXPECT_TRUE(absl::IsUnavailable(world.status())) << world.status();
  EXPECT_THAT(std::string(world.status().message()), ::testing::HasSubstr("203.0.113.7"));
}

}  // namespace
}  // namespace muster
