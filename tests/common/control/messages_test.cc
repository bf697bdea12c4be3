#include "common/control/messages.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace muster {
namespace {

using ::testing::HasSubstr;

constexpr double kInf = std::numeric_limits<double>::infinity();

std::vector<AgentToTrainer> ToTrainerSamples() {
  AssignMessage assign;
  assign.job_id = "job-7";
  assign.epoch = 3;
  assign.rank = 5;
  assign.world_size = 8;
  assign.spec_json = "{\"name\": \"a \\\"quoted\\\" name\"}\n";
  assign.host_address = "10.0.0.2";
  assign.device = "cuda:1";
  assign.num_threads = 4;
  assign.directives_through = 12;
  assign.plugin_dirs = {"/opt/plugins", "/srv/\xC3\xA9"};
  assign.num_helpers = 2;
  assign.buddy = 7;
  assign.snapshot_memory = "/proc/77/fd/9";
  assign.ledger_through = 41;
  assign.examine_json = "{}";
  StoreReplyMessage reply;
  reply.request = 9;
  reply.ok = true;
  reply.error = "none";
  reply.error_code = 4;
  reply.entries = {{"k/0", "00ff"}, {"k/1", ""}};
  return {
      assign,
      UniqueIdMessage{3, "a0b1"},
      DirectiveMessage{3, {1, Directive::Kind::kCheckpoint, "asked"}},
      DirectiveMessage{3, {2, Directive::Kind::kEvaluate, ""}},
      DirectiveMessage{3, {3, Directive::Kind::kStop, "cancel"}},
      DirectiveMessage{3, {4, Directive::Kind::kCheckpointAndStop, "ctrl-C"}},
      DirectiveMessage{3, {5, Directive::Kind::kTrace, "look", 7}},
      DirectiveMessage{3, {6, Directive::Kind::kCheckpointAndExit, "bad", std::nullopt, 12, 16}},
      AbortMessage{3, "rank 2 died"},
      ShutdownMessage{"drained"},
      reply,
      ProbeMessage{.epoch = 3, .request = 8}};
}

StepMessage FullStep() {
  StepMessage step;
  step.epoch = 2;
  step.iteration = 100;
  step.consumed_samples = 25600;
  step.lm_loss = 3.0000000000000004;
  step.loss_text = "text";
  step.grad_norm = 0.1;
  step.num_zeros = int64_t{1} << 53;
  step.params_norm = 0.2;
  step.load_balancing_loss = 1.0 / 7.0;
  step.seq_load_balancing_loss = std::numeric_limits<double>::infinity();
  step.global_load_balancing_loss = 0;
  step.z_loss = 1e-300;
  step.learning_rate = 1.0 / 3.0;
  step.loss_scale = 65536;
  step.elapsed_ms = 12.5;
  step.tokens_per_s = 1e5;
  step.tflops_per_device = 0.25;
  step.skipped = true;
  step.num_floating_point_operations_so_far = 1.2345678901234567e21;
  step.memory_bytes = int64_t{1} << 62;
  step.applied_directive = 4;
  step.global_batch_size = 256;
  step.timers_ms = {{"forward-backward", 10.25}, {"optimizer", 1e-300}};
  return step;
}

ProbeReplyMessage FullProbeReply() {
  return {.epoch = 2,
          .request = 8,
          .iteration = 99,
          .phase = "training",
          .thread_cpu_ms = 1234.5,
          .ops = {{"world", {0, 1, 2}, 812, "all_reduce 4096 x float", false, 1500.25},
                  {"pp", {}, 0, "", true, 0}}};
}

std::vector<TrainerToAgent> ToAgentSamples() {
  StoreRequestMessage set{1, 2, StoreRequestMessage::Op::kSet, "a/b", "00", 0, 0};
  StoreRequestMessage wait{2, 2, StoreRequestMessage::Op::kWaitPrefix, "a/", "", 8, 30000};
  return {HelloMessage{4711, kControlProtocolVersion},
          PhaseMessage{2, "forming", "group tp"},
          PublishUniqueIdMessage{2, "beef"},
          set,
          wait,
          TracePieceMessage{3, 2, 5, 1'000, "{\"rank\":0}\n", true, 60'000},
          FullStep(),
          StepMessage{},
          EvaluationMessage{2, 100, "valid", 1.5, 4.4816890703380645, true},
          CheckpointMessage{2, 100, "/ckpt/iter_100", false, "no space left on device", 1.5},
          ProgressMessage{2, 99},
          EventMessage{2, "loaded", "iteration 50"},
          DoneMessage{2, 16, "rerun"},
          FailedMessage{2, "all_reduce timed out", true},
          FullProbeReply(),
          RestoredMessage{2, 100, "live", "rank 1 from rank 0", 12.5, 80.25, 1 << 20},
          RankTimesMessage{2, 100, 40, 9.5, 1.25, 0.125},
          ExamineMessage{2, 100, "{\"rank\":1}"}};
}

TEST(MessagesTest, EveryMessageSurvivesTheRoundTrip) {
  for (const AgentToTrainer& message : ToTrainerSamples()) {
    const std::string line = Encode(message);
    SCOPED_TRACE(line);
    EXPECT_EQ(line.find('\n'), line.size() - 1) << "one line, ending in a newline";
    auto decoded = DecodeAgentToTrainer(line);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(Encode(*decoded), line);
  }
  for (const TrainerToAgent& message : ToAgentSamples()) {
    const std::string line = Encode(message);
    SCOPED_TRACE(line);
    EXPECT_EQ(line.find('\n'), line.size() - 1);
    auto decoded = DecodeTrainerToAgent(line);
    ASSERT_TRUE(decoded.ok()) << decoded.status();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(Encode(*decoded), line);
  }
}

TEST(MessagesTest, FieldsArriveWhereTheyWereSent) {
  auto decoded = DecodeTrainerToAgent(Encode(TrainerToAgent(FullStep())));
  ASSERT_TRUE(decoded.ok());
  const StepMessage& step = std::get<StepMessage>(*decoded);
  EXPECT_EQ(step.iteration, 100);
  EXPECT_EQ(step.lm_loss, 3.0000000000000004);
  EXPECT_EQ(step.learning_rate, 1.0 / 3.0);
  EXPECT_EQ(step.num_floating_point_operations_so_far, 1.2345678901234567e21);
  EXPECT_EQ(step.memory_bytes, int64_t{1} << 62);
  EXPECT_TRUE(step.skipped);
  EXPECT_EQ(step.timers_ms, FullStep().timers_ms);

  auto assigned = DecodeAgentToTrainer(Encode(ToTrainerSamples()[0]));
  ASSERT_TRUE(assigned.ok());
  const AssignMessage& assign = std::get<AssignMessage>(*assigned);
  EXPECT_EQ(assign.rank, 5);
  EXPECT_EQ(assign.spec_json, "{\"name\": \"a \\\"quoted\\\" name\"}\n");
  EXPECT_THAT(assign.plugin_dirs, ::testing::ElementsAre("/opt/plugins", "/srv/\xC3\xA9"));

  auto ordered = DecodeAgentToTrainer(Encode(ToTrainerSamples()[5]));
  ASSERT_TRUE(ordered.ok());
  EXPECT_EQ(std::get<DirectiveMessage>(*ordered).directive,
            (Directive{4, Directive::Kind::kCheckpointAndStop, "ctrl-C"}));
}

TEST(MessagesTest, AProbeReplyKeepsItsArrivals) {
  auto decoded = DecodeTrainerToAgent(Encode(TrainerToAgent(FullProbeReply())));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<ProbeReplyMessage>(*decoded), FullProbeReply());
}

TEST(MessagesTest, WhatAnOlderPeerDoesNotSendHasItsDefault) {
  auto assign = DecodeAgentToTrainer(
      R"({"type":"assign","job_id":"j","epoch":1,"rank":1,"world_size":2,"spec_json":"{}","host_address":"","device":"cpu","num_threads":1,"directives_through":0,"plugin_dirs":[]})");
  ASSERT_TRUE(assign.ok()) << assign.status();
  const auto& message = std::get<AssignMessage>(*assign);
  EXPECT_EQ(message.num_helpers, 0);
  EXPECT_EQ(message.buddy, -1);
  EXPECT_EQ(message.snapshot_memory, "");
  EXPECT_EQ(message.ledger_through, 0);
  EXPECT_EQ(message.examine_json, "");
  auto hello = DecodeTrainerToAgent(R"({"type":"hello","pid":1,"version":1})");
  ASSERT_TRUE(hello.ok()) << hello.status();
  EXPECT_EQ(std::get<HelloMessage>(*hello).revision, 1);
}

TEST(MessagesTest, ASpareAndAHelperHaveRanksOfTheirOwn) {
  struct Row {
    int rank, num_helpers, buddy;
    const char* error;  // null: good
  };
  const Row rows[] = {{-1, 0, -1, nullptr},
                      {2, 1, -1, nullptr},
                      {0, 0, 1, nullptr},
                      {-2, 0, -1, "assign.rank=-2 must be in 0..1 (world_size + num_helpers - 1)"},
                      {3, 1, -1, "assign.rank=3 must be in 0..2"},
                      {0, -1, -1, "assign.num_helpers=-1 must be at least 0"},
                      {0, 0, 2, "assign.buddy=2 must be in 0..1"}};
  for (const Row& row : rows) {
    AssignMessage assign;
    assign.rank = row.rank;
    assign.world_size = 2;
    assign.num_helpers = row.num_helpers;
    assign.buddy = row.buddy;
    SCOPED_TRACE(Encode(AgentToTrainer(assign)));
    auto decoded = DecodeAgentToTrainer(Encode(AgentToTrainer(assign)));
    ASSERT_EQ(decoded.ok(), row.error == nullptr) << decoded.status();
    if (row.error != nullptr) {
      EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(row.error));
    }
  }
}

TEST(MessagesTest, AbsentLossStaysAbsent) {
  auto decoded = DecodeTrainerToAgent(Encode(TrainerToAgent(StepMessage{})));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<StepMessage>(*decoded).lm_loss, std::nullopt);
  EXPECT_EQ(std::get<StepMessage>(*decoded).grad_norm, std::nullopt);
  EXPECT_EQ(std::get<StepMessage>(*decoded).num_zeros, std::nullopt);
  EXPECT_EQ(std::get<StepMessage>(*decoded).params_norm, std::nullopt);
  for (const auto& [name, value] : kStepSideLosses)
    EXPECT_EQ(std::get<StepMessage>(*decoded).*value, std::nullopt) << name;
}

TEST(MessagesTest, DoublesKeepAllDigits) {
  std::mt19937_64 random(20240607);
  for (int i = 0; i < 2000; ++i) {
    const uint64_t bits = random();
    double value;
    std::memcpy(&value, &bits, sizeof value);
    if (!std::isfinite(value)) continue;
    EvaluationMessage message{1, 1, "valid", value, -value, false};
    auto decoded = DecodeTrainerToAgent(Encode(TrainerToAgent(message)));
    ASSERT_TRUE(decoded.ok());
    EXPECT_EQ(std::get<EvaluationMessage>(*decoded).lm_loss, value);
    EXPECT_EQ(std::get<EvaluationMessage>(*decoded).ppl, -value);
  }
}

TEST(MessagesTest, NanAndInfinityTravel) {
  StepMessage step;
  step.grad_norm = kInf;
  step.lm_loss = std::nan("");
  step.learning_rate = -kInf;
  step.timers_ms = {{"x", std::nan("")}};
  auto decoded = DecodeTrainerToAgent(Encode(TrainerToAgent(step)));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  const StepMessage& back = std::get<StepMessage>(*decoded);
  EXPECT_EQ(back.grad_norm, kInf);
  ASSERT_TRUE(back.lm_loss.has_value());
  EXPECT_TRUE(std::isnan(*back.lm_loss));
  EXPECT_EQ(back.learning_rate, -kInf);
  EXPECT_TRUE(std::isnan(back.timers_ms.at("x")));
}

TEST(MessagesTest, BytesThatAreNotUtf8DoNotCostTheMessage) {
  auto decoded = DecodeTrainerToAgent(Encode(TrainerToAgent(FailedMessage{1, "bad \xFF byte"})));
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_THAT(std::get<FailedMessage>(*decoded).reason, HasSubstr("bad \xEF\xBF\xBD byte"));
}

TEST(MessagesTest, UnknownFieldsOfANewerPeerAreIgnored) {
  auto decoded = DecodeAgentToTrainer(
      R"({"type":"unique_id","epoch":4,"id":"ab","colour":"red","more":{"deep":[1,2]}})");
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EXPECT_EQ(std::get<UniqueIdMessage>(*decoded).epoch, 4);
}

TEST(MessagesTest, ErrorsNameTheField) {
  struct Row {
    const char* name;
    std::string line;
    const char* expected;
  };
  const Row rows[] = {
      {"empty", "", "not valid JSON"},
      {"blank", "\n", "not valid JSON"},
      {"array", "[]", "must be a JSON object"},
      {"no type", R"({"epoch":1})", "message.type is missing"},
      {"type not text", R"({"type":7})", "message.type is missing or not a string"},
      {"unknown type", R"({"type":"banana"})", "message.type=\"banana\" is unknown"},
      {"other direction", R"({"type":"hello","pid":1,"version":1})", "is unknown"},
      {"two objects", R"({"type":"shutdown","reason":""}{})", "not valid JSON"},
      {"missing", R"({"type":"unique_id","epoch":1})", "unique_id.id is missing"},
      {"string for int", R"({"type":"unique_id","epoch":"1","id":""})",
       "unique_id.epoch must be a whole number, not \"1\""},
      {"float for int", R"({"type":"unique_id","epoch":1.0,"id":""})",
       "unique_id.epoch must be a whole number, not 1.0"},
      {"too big", R"({"type":"unique_id","epoch":18446744073709551615,"id":""})",
       "unique_id.epoch must be a whole number of 64 bits"},
      {"null", R"({"type":"unique_id","epoch":1,"id":null})",
       "unique_id.id must be a string, not null"},
      {"int for bool",
       R"({"type":"store_reply","request":1,"ok":1,"error":"","error_code":0,"entries":[]})",
       "store_reply.ok must be true or false, not 1"},
      {"bad entry",
       R"({"type":"store_reply","request":1,"ok":true,"error":"","error_code":0,"entries":[["a"]]})",
       "store_reply.entries[0] must be [key, value], not an array"},
      {"entry value",
       R"({"type":"store_reply","request":1,"ok":true,"error":"","error_code":0,"entries":[["a",5]]})",
       "store_reply.entries[0][1] must be a string, not 5"},
      {"32 bits",
       R"({"type":"store_reply","request":1,"ok":true,"error":"","error_code":3000000000,"entries":[]})",
       "store_reply.error_code must be a whole number of 32 bits"},
      {"directive type", R"({"type":"directive","epoch":1,"directive":[]})",
       "directive.directive must be an object"},
      {"directive kind",
       R"({"type":"directive","epoch":1,"directive":{"number":1,"kind":"jump","reason":""}})",
       "directive.directive.kind must be one of checkpoint, evaluate, stop, checkpoint_and_stop"},
      {"directive number",
       R"({"type":"directive","epoch":1,"directive":{"number":0,"kind":"stop","reason":""}})",
       "directive.directive.number must be at least 1"},
      {"probe", R"({"type":"probe","epoch":1,"request":"x"})",
       "probe.request must be a whole number"},
      {"rank outside the world",
       R"({"type":"assign","job_id":"j","epoch":1,"rank":2,"world_size":2,"spec_json":"{}","host_address":"","device":"cpu","num_threads":1,"directives_through":0,"plugin_dirs":[]})",
       "assign.rank=2 must be in 0..1"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    auto decoded = DecodeAgentToTrainer(row.line);
    ASSERT_FALSE(decoded.ok());
    EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_THAT(std::string(decoded.status().message()), HasSubstr(row.expected));
  }
  auto timers = DecodeTrainerToAgent(
      R"({"type":"evaluation","epoch":1,"iteration":1,"split":"valid","lm_loss":"high","ppl":1,"final":false})");
  EXPECT_THAT(std::string(timers.status().message()),
              HasSubstr("evaluation.lm_loss must be a number"));
  auto arrival = DecodeTrainerToAgent(
      R"({"type":"probe_reply","epoch":1,"request":1,"iteration":1,"phase":"","thread_cpu_ms":0,"ops":[{"group":"dp","ranks":[0,"x"],"sequence":1,"operation":"","done":true,"age_ms":0}]})");
  EXPECT_THAT(std::string(arrival.status().message()),
              HasSubstr("probe_reply.ops[0].ranks[1] must be a whole number"));
}

TEST(MessagesTest, TruncatedLinesAreErrorsNotCrashes) {
  for (const TrainerToAgent& message : ToAgentSamples()) {
    const std::string line = Encode(message);
    for (size_t size = 0; size + 1 < line.size(); ++size) {
      EXPECT_FALSE(DecodeTrainerToAgent(line.substr(0, size)).ok());
    }
  }
}

TEST(MessagesTest, DamagedLinesNeverCrash) {
  const uint64_t seed = 99;
  SCOPED_TRACE(testing::Message() << "seed " << seed);
  std::mt19937_64 random(seed);
  const auto samples = ToAgentSamples();
  int rejected = 0;
  for (int i = 0; i < 5000; ++i) {
    std::string line = Encode(samples[random() % samples.size()]);
    for (uint64_t flips = 1 + random() % 3; flips > 0; --flips) {
      line[random() % line.size()] = static_cast<char>(random());
    }
    auto decoded = DecodeTrainerToAgent(line);
    if (!decoded.ok()) {
      ++rejected;
      EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
      EXPECT_FALSE(decoded.status().message().empty());
    }
  }
  EXPECT_GT(rejected, 500);
}

TEST(MessagesTest, HugeLines) {
  const std::string big(1 << 20, 'x');
  auto decoded = DecodeTrainerToAgent(Encode(TrainerToAgent(EventMessage{1, "big", big})));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(std::get<EventMessage>(*decoded).text, big);

  const std::string too_long(kMaxControlLine + 1, ' ');
  EXPECT_THAT(std::string(DecodeTrainerToAgent(too_long).status().message()),
              HasSubstr("longer than the limit of 16777216 bytes"));
  const std::string deep(1 << 20, '[');
  EXPECT_FALSE(DecodeTrainerToAgent(deep).ok());
  const std::string nested = R"({"type":"event","epoch":1,"kind":)" + std::string(100000, '[') +
                             std::string(100000, ']') + R"(,"text":""})";
  EXPECT_THAT(std::string(DecodeTrainerToAgent(nested).status().message()),
              HasSubstr("event.kind must be a string, not an array"));
}

}  // namespace
}  // namespace muster
