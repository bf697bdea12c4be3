// The trainer's end of the socket, with the test as its agent.

#include "worker/train/control_client.h"

#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "tests/worker/train/test_agent.h"
#include "worker/train/signals.h"

namespace muster {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

AssignMessage Assign(int64_t epoch, const std::string& job = "job") {
  AssignMessage assign;
  assign.job_id = job;
  assign.epoch = epoch;
  return assign;
}
DirectiveMessage Order(int64_t epoch, int64_t number) {
  return {.epoch = epoch, .directive = {number, Directive::Kind::kCheckpoint, "test"}};
}

class ControlClientTest : public testing::Test {
 protected:
  // Everything sent before has been handled once this returns: a store's set and its answer pass
  // behind it, in order.
  void Settle(int64_t epoch) {
    std::thread caller([&] { EXPECT_TRUE(client_.StoreOf(epoch)->Set("settle", "").ok()); });
    const auto request = agent_.WaitFor<StoreRequestMessage>();
    agent_.Send(StoreReplyMessage{.request = request.request, .ok = true});
    caller.join();
  }
  int64_t Begin(int64_t epoch) {
    agent_.Send(Assign(epoch));
    return client_.WaitForAssignment().value().epoch;
  }

  TestAgent agent_;
  Notification end_of_file_;
  ControlClient client_{agent_.TakeTrainerEnd(), [this] { end_of_file_.Notify(); }};
};

TEST_F(ControlClientTest, ProgressIsSaidNowAndThenNotAtEveryStep) {
  EXPECT_EQ(Begin(1), 1);
  for (int64_t step = 1; step <= 10'000; ++step) client_.NoteProgress(1, step);
  client_.Send(DoneMessage{.epoch = 1});
  std::vector<int64_t> said;
  while (true) {
    const TrainerToAgent message = agent_.Next();
    if (std::holds_alternative<DoneMessage>(message)) break;
    said.push_back(std::get<ProgressMessage>(message).iteration);
  }
  ASSERT_FALSE(said.empty());
  EXPECT_EQ(said.front(), 1) << "the first at once";
  EXPECT_LT(said.size(), 100u) << "10,000 steps take far less than 20 s here";
}

TEST_F(ControlClientTest, DirectivesOfAnotherEpochAreDropped) {
  EXPECT_EQ(Begin(5), 5);
  agent_.Send(Order(4, 1));
  agent_.Send(Order(5, 2));
  agent_.Send(Order(6, 3));
  Settle(5);
  const auto directives = client_.TakeDirectives();
  ASSERT_THAT(directives, SizeIs(1));
  EXPECT_EQ(directives[0].number, 2);
  EXPECT_THAT(client_.TakeDirectives(), IsEmpty());
}

TEST_F(ControlClientTest, AnAssignmentThatWasOvertakenIsDropped) {
  EXPECT_EQ(Begin(5), 5);
  agent_.Send(Assign(5));
  agent_.Send(Assign(4));
  EXPECT_EQ(Begin(6), 6);
  // Another job counts its epochs anew.
  agent_.Send(Assign(1, "another"));
  EXPECT_EQ(client_.WaitForAssignment().value().job_id, "another");
  agent_.Send(ShutdownMessage{.reason = "test"});
  EXPECT_EQ(client_.WaitForAssignment(), std::nullopt);
}

// The attempt under way asks for directives until it notices its end; it must not eat the next
// one's.
TEST_F(ControlClientTest, DirectivesOfTheNextAttemptWaitForIt) {
  EXPECT_EQ(Begin(5), 5);
  agent_.Send(Assign(6));
  agent_.Send(Order(6, 1));
  agent_.Send(UniqueIdMessage{.epoch = 6, .id = "read after the order"});
  while (!client_.WaitForUniqueId(6, absl::Minutes(1)).ok()) std::this_thread::yield();
  EXPECT_THAT(client_.TakeDirectives(), IsEmpty());
  EXPECT_EQ(client_.WaitForAssignment().value().epoch, 6);
  EXPECT_THAT(client_.TakeDirectives(), SizeIs(1));
}

// Of a rank that holds a step.
TEST_F(ControlClientTest, WhoeverWaitsForDirectivesGetsThemOrTheEndOfTheEpoch) {
  EXPECT_EQ(Begin(5), 5);
  agent_.Send(Order(4, 1));
  agent_.Send(Order(5, 2));
  const std::vector<Directive> come = client_.WaitForDirectives(5);
  ASSERT_THAT(come, SizeIs(1));
  EXPECT_EQ(come[0].number, 2);
  std::thread waiter([&] { EXPECT_THAT(client_.WaitForDirectives(5), IsEmpty()); });
  agent_.Send(Assign(6));
  agent_.Send(Order(6, 3));
  waiter.join();
  EXPECT_THAT(client_.WaitForDirectives(5), IsEmpty());
  EXPECT_THAT(client_.WaitForDirectives(6), SizeIs(1));
}

TEST_F(ControlClientTest, UniqueIdOfThisEpochOnly) {
  EXPECT_EQ(Begin(5), 5);
  agent_.Send(UniqueIdMessage{.epoch = 4, .id = "old"});
  agent_.Send(UniqueIdMessage{.epoch = 5, .id = "abc"});
  EXPECT_EQ(client_.WaitForUniqueId(5, absl::Seconds(30)).value(), "abc");
  EXPECT_EQ(client_.WaitForUniqueId(4, absl::Seconds(30)).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(Begin(6), 6);
  EXPECT_EQ(client_.WaitForUniqueId(6, absl::Milliseconds(1)).status().code(),
            absl::StatusCode::kDeadlineExceeded);
}

TEST_F(ControlClientTest, TheStoreTravelsInHexAndItsErrorsComeBack) {
  EXPECT_EQ(Begin(5), 5);
  auto store = client_.StoreOf(5);
  const std::string bytes("\0\xff\n", 3);
  std::thread setter([&] { EXPECT_TRUE(store->Set("key", bytes).ok()); });
  const auto set = agent_.WaitFor<StoreRequestMessage>();
  EXPECT_EQ(set.epoch, 5);
  EXPECT_EQ(set.value, "00ff0a");
  agent_.Send(StoreReplyMessage{.request = set.request, .ok = true});
  setter.join();

  std::thread waiter([&] {
    auto entries = store->WaitPrefix("k", 1, absl::Seconds(30));
    ASSERT_TRUE(entries.ok()) << entries.status();
    EXPECT_THAT(*entries, ElementsAre(std::pair<std::string, std::string>("key", bytes)));
    const auto late = store->WaitPrefix("k", 2, absl::Seconds(30));
    EXPECT_EQ(late.status().code(), absl::StatusCode::kDeadlineExceeded);
    EXPECT_EQ(late.status().message(), "1 of 2");
  });
  const auto first = agent_.WaitFor<StoreRequestMessage>();
  EXPECT_EQ(first.count, 1);
  agent_.Send(StoreReplyMessage{.request = 999, .ok = true});  // nobody's
  agent_.Send(
      StoreReplyMessage{.request = first.request, .ok = true, .entries = {{"key", "00ff0a"}}});
  const auto second = agent_.WaitFor<StoreRequestMessage>();
  agent_.Send(
      StoreReplyMessage{.request = second.request,
                        .ok = false,
                        .error = "1 of 2",
                        .error_code = static_cast<int>(absl::StatusCode::kDeadlineExceeded)});
  waiter.join();
}

TEST_F(ControlClientTest, TheEndOfAnEpochFreesItsCallers) {
  EXPECT_EQ(Begin(5), 5);
  std::atomic<int> aborted = 0;
  client_.OnAbort(5, [&](const std::string& reason) {
    EXPECT_EQ(reason, "rank 3 is lost");
    ++aborted;
  });
  absl::Status store_status, id_status;
  std::thread waiter([&] { store_status = client_.StoreOf(5)->Set("key", "value"); });
  std::thread id_waiter([&] { id_status = client_.WaitForUniqueId(5, absl::Minutes(5)).status(); });
  agent_.WaitFor<StoreRequestMessage>();  // it waits now
  agent_.Send(AbortMessage{.epoch = 4, .reason = "of another epoch"});
  agent_.Send(AbortMessage{.epoch = 5, .reason = "rank 3 is lost"});
  waiter.join();
  id_waiter.join();
  EXPECT_EQ(store_status.code(), absl::StatusCode::kAborted) << store_status;
  EXPECT_THAT(std::string(store_status.message()), HasSubstr("rank 3 is lost"));
  EXPECT_EQ(id_status.code(), absl::StatusCode::kAborted);
  EXPECT_EQ(client_.StoreOf(5)->Set("key", "value").code(), absl::StatusCode::kAborted);
  EXPECT_EQ(Begin(6), 6);
  EXPECT_EQ(aborted, 1);
}

TEST_F(ControlClientTest, OnAbortOfAnEpochThatIsOverIsCalledAtOnce) {
  EXPECT_EQ(Begin(5), 5);
  agent_.Send(AbortMessage{.epoch = 5, .reason = "over"});
  EXPECT_EQ(client_.WaitForUniqueId(5, absl::Minutes(5)).status().code(),
            absl::StatusCode::kAborted);
  int calls = 0;
  client_.OnAbort(5, [&](const std::string& reason) {
    EXPECT_EQ(reason, "over");
    ++calls;
  });
  EXPECT_EQ(calls, 1);
  EXPECT_EQ(Begin(6), 6);
  client_.OnAbort(5, [&](const std::string&) { ++calls; });
  EXPECT_EQ(calls, 2);
  // Epoch 6 has no callback: its abort calls nobody.
  agent_.Send(AbortMessage{.epoch = 6, .reason = "over too"});
  EXPECT_EQ(client_.WaitForUniqueId(6, absl::Minutes(5)).status().code(),
            absl::StatusCode::kAborted);
  EXPECT_EQ(calls, 2);
}

TEST_F(ControlClientTest, EndOfFileIsTold) {
  agent_.Close();
  end_of_file_.Wait();
  EXPECT_EQ(client_.WaitForAssignment(), std::nullopt);
}

TEST_F(ControlClientTest, ALineWithoutEndEndsTheConnection) {
  EXPECT_EQ(Begin(5), 5);
  agent_.SendRaw("not json\n{\"type\":\"of another version\"}\n");
  Settle(5);  // those were dropped, no more
  const std::string piece(1 << 20, 'x');
  for (size_t sent = 0; sent <= kMaxControlLine + piece.size(); sent += piece.size()) {
    if (!agent_.SendRaw(piece)) break;  // it closed in the meantime
  }
  end_of_file_.Wait();
}

TEST_F(ControlClientTest, AFloodArrivesWholeAndInOrder) {
  EXPECT_EQ(Begin(5), 5);
  constexpr int64_t kMessages = 20'000;
  for (int64_t i = 1; i <= kMessages; ++i) {
    client_.Send(EventMessage{.epoch = 5, .kind = "flood", .text = absl::StrCat(i)});
  }
  for (int64_t i = 1; i <= kMessages; ++i) {
    ASSERT_EQ(agent_.WaitFor<EventMessage>().text, absl::StrCat(i));
  }
  // The other way too.
  for (int64_t i = 1; i <= kMessages; ++i) agent_.Send(Order(5, i));
  Settle(5);
  EXPECT_THAT(client_.TakeDirectives(), SizeIs(kMessages));
}

TEST_F(ControlClientTest, AnAgentThatDoesNotReadBlocksNobody) {
  EXPECT_EQ(Begin(5), 5);
  // Far more than a socket holds; the client keeps what its queue takes and drops the rest.
  const std::string text(1000, 'x');
  for (int i = 0; i < 5000; ++i) client_.Send(EventMessage{.epoch = 5, .kind = "k", .text = text});
  // Not even the end: the destructor waits a limited time.
}

TEST(SignalsTest, TermAndIntReachTheCallbackAndPipeIsIgnored) {
  for (const int sent : {SIGTERM, SIGINT}) {
    const pid_t child = ::fork();  // a process with one thread, as the trainer is when it asks
    if (child == 0) {
      HandleExitSignals([](int received) { ::_exit(received); });
      ::kill(::getpid(), SIGPIPE);
      ::kill(::getpid(), sent);
      while (true) ::pause();
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status));
    EXPECT_EQ(WEXITSTATUS(status), sent);
  }
}

}  // namespace
}  // namespace muster
