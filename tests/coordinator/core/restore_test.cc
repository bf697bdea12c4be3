// What a journal may hold that no coordinator wrote: each fault is named, and nothing worse
// happens.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <random>

#include "absl/strings/str_replace.h"
#include "coordinator/core/coordinator.h"
#include "coordinator/core/invariants.h"
#include "tests/coordinator/core/map_journal.h"
#include "tests/coordinator/core/random_events.h"
#include "tests/coordinator/core/test_spec.h"

namespace muster {
namespace {

using testing::HasSubstr;
using testing::IsEmpty;

const absl::Time kNow = absl::FromUnixSeconds(1'700'000'000);
const char kAgent[] = "agent/696e6361726e6174696f6e2d31";

// A job of two ranks with a spare that has trained a step, one key, one directive.
MapJournal SmallJournal() {
  Coordinator core({});
  RegisterAgent agent{.incarnation = "incarnation-1", .node = "n1", .address = "10.0.0.1"};
  for (int i = 0; i < 4; ++i) {
    agent.workers.push_back({absl::StrCat("n1/", i), "cpu", DeviceKind::kCpu, i});
  }
  StepMessage step;
  step.iteration = 1;
  const Event events[] = {
      agent,
      OpenStream{"incarnation-1", 1},
      SubmitJob{.spec_json = TestSpec({.spares = 1, .save = "/c"}), .idempotency_key = "k"},
      ReportBatch{1, 1, {{{"n1/0", "job-1", 1, 0}, step}}},
      SetKey{"job-1", 1, "a", "b"},
      RequestDirective{.job_id = "job-1"},
      DrainWorker{"n1/3"},
      SubmitJob{.spec_json = TestSpec({.world_size = 3})},
  };
  MapJournal journal;
  for (const Event& event : events) {
    EXPECT_TRUE(core.Handle(event, kNow).status.ok());
    journal.Write(core.TakeChanges());
  }
  return journal;
}

TEST(RestoreTest, FaultsAreNamed) {
  using Spoil = std::function<void(MapJournal*)>;
  const auto drop = [](std::string key) -> Spoil {
    return [key](MapJournal* j) { ASSERT_EQ(j->records.erase(key), 1u); };
  };
  const auto set = [](std::string key, std::string value) -> Spoil {
    return [key, value](MapJournal* j) { j->records[key] = value; };
  };
  const auto replace = [](std::string key, std::string from, std::string to) -> Spoil {
    return [=](MapJournal* j) {
      const std::string before = j->records.at(key);
      j->records[key] = absl::StrReplaceAll(before, {{from, to}});
      ASSERT_NE(before, j->records[key]);
    };
  };
  const struct {
    const char* name;
    Spoil spoil;
    const char* says;
  } rows[] = {
      {"no JSON", set("job/1/state", "{\"state\":"), "job/1/state: must be a JSON object"},
      {"a list", set("job/1/state", "[]"), "job/1/state: must be a JSON object"},
      {"deep", set("job/1/state", std::string(100'000, '[')), "job/1/state: must be"},
      {"wrong type", replace("job/1/state", "\"epoch\":1", "\"epoch\":\"x\""),
       "job/1/state, epoch: must be a whole number"},
      {"too large", replace("job/1/state", "\"epoch\":1", "\"epoch\":18446744073709551615"),
       "job/1/state, epoch: must be a whole number of 64 bits"},
      {"unknown state", replace("job/1/state", "RUNNING", "DANCING"), "\"DANCING\" is not one"},
      {"no job", drop("job/1"), "job/1: is missing"},
      {"no state", drop("job/1/state"), "job/1/state: is missing"},
      {"no rank", drop("job/1/rank/1"), "is RUNNING with 1 of 2 rank records"},
      {"a hole", drop("job/1/rank/0"), "job/1/rank/0: is missing, and a higher rank is there"},
      {"a rank too many", set("job/1/rank/2", R"({"worker":"n1/3","trainer":"exited"})"),
       "job/1/rank/2: the job has 2 ranks"},
      {"a rank without job", set("job/5/rank/0", "{}"), "job/5: is missing"},
      {"rank by no number", set("job/1/rank/x", "{}"), "job/1/rank/x: must end in a number"},
      {"job by no number", set("job/x", "{}"), "job/x: \"job/\" must be followed"},
      {"job by zero in front", set("job/01", "{}"), "job/01: \"job/\" must be followed"},
      {"held twice", replace("job/1/rank/1", "n1/1", "n1/0"),
       "job/1/rank/1: worker n1/0 is held by job-1 too, as rank 0"},
      {"spare held twice", replace("job/1/epoch", "n1/2", "n1/1"), "job/1/epoch, extras: worker"},
      {"unknown worker", replace("job/1/rank/1", "n1/1", "n9/1"), "worker n9/1 is not there"},
      {"another life", replace("job/1/rank/1", "aW5j", "aW5k"), "another life of its agent"},
      {"no agent", drop(kAgent), "the agent's own record is missing"},
      {"agent is lost", replace(kAgent, "\"stretch\"", "\"is_lost\":true,\"stretch\""),
       "which is lost"},
      {"bad node", replace(kAgent, "\"node\":\"n1\"", "\"node\":\"n 1\""), "node=\"n 1\""},
      {"bad agent key", set("agent/xyz", "{}"), "agent/xyz: must end in hex digits"},
      {"a worker of two agents",
       [](MapJournal* j) { j->records["agent/7878787878787878"] = j->records.at(kAgent); },
       "belongs to agent/696e"},
      {"no coordinator", drop("coordinator"), "coordinator: is missing"},
      {"newer", replace("coordinator", "\"durable_version\":1", "\"durable_version\":2"),
       "was written by a newer coordinator"},
      {"number given already", replace("coordinator", "\"next_sequence\":3", "\"next_sequence\":2"),
       "job/2: is not below next_sequence=2"},
      {"one id twice", replace("job/2", "job-2", "job-1"), "\"job-1\" belongs to job/1 too"},
      {"key of another epoch", replace("job/1/key/61", "\"epoch\":1", "\"epoch\":2"),
       "job/1/key/61: epoch=2, but the epoch that is open is 1"},
      {"key without job", set("job/9/key/61", "{\"epoch\":1}"), "job/9: is missing"},
      {"key is no base64", replace("job/1/key/61", "\"Yg==\"", "\"%\""), "value: must be base64"},
      {"directives with a hole", set("job/1/directive/3", R"({"kind":"stop"})"),
       "job/1/directive/2: is missing"},
      {"applied too many",
       replace("job/1/state", "\"state\"", "\"directives_applied\":2,\"state\""),
       "directives_applied: must be 0 to 1"},
      {"a bad spec", replace("job/1", "hidden_size", "hiden_size"), "job/1: spec_json: "},
      {"queued with an epoch", replace("job/2/state", "\"state\"", "\"epoch\":1,\"state\""),
       "job/2/state: epoch=1 with 0 rank records"},
      {"failed without cause", replace("job/1/state", "RUNNING", "FAILED"),
       "job/1/cause: is missing, and the job is FAILED"},
      {"ended and open", replace("job/1/state", "RUNNING", "COMPLETED"),
       "job/1/epoch: is open, and the job is COMPLETED"},
      {"samples", replace("job/1/state", "]}", "],\"phase_samples\":[1e300]}"),
       "phase_samples: must be numbers from 0 to 9e15"},
      {"ledger without job",
       [](MapJournal* j) {
         j->ledger[{7, LedgerKind::kStep, 1}] = "{}";
       },
       "job/7: is missing"},
      {"ledger row",
       [](MapJournal* j) {
         j->ledger[{1, LedgerKind::kStep, 1}] = "1";
       },
       "ledger of job 1, kind 1, index 1: must be a JSON object"},
      {"ledger kind",
       [](MapJournal* j) {
         j->ledger[{1, LedgerKind{9}, 1}] = "{}";
       },
       "kind 9, index 1: this kind is not known"},
  };
  for (const auto& row : rows) {
    SCOPED_TRACE(row.name);
    MapJournal journal = SmallJournal();
    row.spoil(&journal);
    Coordinator core({});
    const absl::Status status = core.Restore(journal.Load(), kNow);
    EXPECT_FALSE(status.ok());
    EXPECT_THAT(std::string(status.message()), HasSubstr(row.says));
  }
}

TEST(RestoreTest, WhatALaterVersionAddsIsLeftAlone) {
  MapJournal journal = SmallJournal();
  journal.records["buddies/1"] = "[]";
  journal.records["job/1/snapshot"] = "3";
  std::string& state = journal.records.at("job/1/state");
  state = absl::StrReplaceAll(state, {{"\"state\"", "\"mood\":[1],\"state\""}});
  Coordinator core({});
  const absl::Status status = core.Restore(journal.Load(), kNow);
  EXPECT_TRUE(status.ok()) << status;
}

TEST(RestoreTest, DuplicatesAndErasedRecordsAreNamed) {
  DurableState state = SmallJournal().Load();
  state.records.push_back(state.records.back());
  EXPECT_THAT(std::string(Coordinator({}).Restore(state, kNow).message()),
              HasSubstr("is there twice"));
  state.records.back() = {"job/1", std::nullopt};
  EXPECT_THAT(std::string(Coordinator({}).Restore(state, kNow).message()),
              HasSubstr("job/1: has no value"));
}

TEST(RestoreTest, AnEmptyJournalIsANewCoordinator) {
  Coordinator core({});
  EXPECT_TRUE(core.Restore({}, kNow).ok());
  EXPECT_TRUE(core.TakeChanges().empty());
  EXPECT_THAT(core.SaveAll().records, testing::SizeIs(1));
}

// ---- random damage

class Mutator {
 public:
  explicit Mutator(uint32_t seed) : random_(seed) {}

  void Spoil(DurableState* state) {
    for (int i = 1 + Pick(3); i > 0; --i) {
      if (state->records.empty() || (!state->ledger.empty() && Pick(5) == 0)) {
        SpoilRow(state);
      } else {
        SpoilRecord(state);
      }
    }
  }

 private:
  int Pick(size_t below) { return static_cast<int>(random_() % below); }

  void SpoilRow(DurableState* state) {
    if (state->ledger.empty()) return;
    LedgerRow& row = state->ledger[Pick(state->ledger.size())];
    switch (Pick(4)) {
      case 0:
        row.value = SpoilText(row.value);
        return;
      case 1:
        row.index = static_cast<int64_t>(random_()) - (int64_t{1} << 31);
        return;
      case 2:
        row.kind = static_cast<LedgerKind>(Pick(7));
        return;
      default:
        row.job += Pick(3) - 1;
    }
  }

  void SpoilRecord(DurableState* state) {
    const size_t i = Pick(state->records.size());
    DurableRecord& record = state->records[i];
    switch (Pick(6)) {
      case 0:
        state->records.erase(state->records.begin() + i);
        return;
      case 1:
        record.key = SpoilText(record.key);
        return;
      case 2:  // another record's value
        record.value = state->records[Pick(state->records.size())].value;
        return;
      case 3:
        record.value.reset();
        return;
      default:
        record.value = SpoilText(record.value.value_or(""));
    }
  }

  std::string SpoilText(std::string text) {
    static const char* const kPieces[] = {"null", "-1", "1e999", "9223372036854775807",  "\"\"",
                                          "[]",   "{}", "true",  "18446744073709551616", "0.5"};
    if (text.empty()) return "x";
    const size_t at = Pick(text.size());
    switch (Pick(5)) {
      case 0:
        text[at] = static_cast<char>(Pick(256));
        return text;
      case 1:
        return text.substr(0, at);
      case 2: {  // a number or another value in place of one
        const size_t colon = text.find(':', at);
        if (colon == std::string::npos) return text;
        const size_t end = text.find_first_of(",}]", colon);
        if (end == std::string::npos) return text;
        return text.substr(0, colon + 1) + kPieces[Pick(10)] + text.substr(end);
      }
      case 3:
        return text.substr(0, at) + text.substr(std::min(text.size(), at + 1 + Pick(8)));
      default:
        return text.substr(0, at) + std::string(1 + Pick(3), '"') + text.substr(at);
    }
  }

  std::mt19937 random_;
};

TEST(RestoreTest, NoDamageDoesHarm) {
  int refused = 0, taken = 0;
  for (uint32_t seed = 1; seed <= 12; ++seed) {
    RandomEvents events(seed);
    Coordinator writer({});
    absl::Time now = kNow;
    for (int i = 0; i < 150; ++i) {
      now += absl::Milliseconds(20);
      const Event event = events.Next(writer);
      events.Note(event, writer.Handle(event, now));
    }
    const DurableState good = writer.SaveAll();
    for (uint32_t damage = 0; damage < 60; ++damage) {
      SCOPED_TRACE(absl::StrCat("seed ", seed, ", damage ", damage));
      DurableState bad = good;
      Mutator(seed * 1000 + damage).Spoil(&bad);
      Coordinator core({});
      const absl::Status status = core.Restore(bad, now);
      if (!status.ok()) {
        EXPECT_FALSE(status.message().empty());
        ++refused;
        continue;
      }
      ++taken;
      // What was taken is a state like any other, and goes on.
      EXPECT_THAT(CheckInvariants(core), IsEmpty());
      EXPECT_TRUE(core.TakeChanges().empty());
      RandomEvents more(damage);
      for (int i = 0; i < 40; ++i) core.Handle(more.Next(core), now);
      core.Tick(now + absl::Hours(1));
      core.TakeChanges();
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(taken, 20);
}

}  // namespace
}  // namespace muster
