#include "tests/integration/chaos/fault_case.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"

namespace muster {

using nlohmann::json;

FaultCase::FaultCase(const ChaosLayout& layout, const json& change)
    : chaos_(layout.slots_of_node), spec_(ChaosSpec(layout, kTrainIters)) {
  spec_.merge_patch(change);
  unbroken_ = UnbrokenOf(chaos_.cluster(), spec_);
  MakeUnruly(chaos_.cluster().folder().path(), &spec_);
}

void FaultCase::Start() {
  job_ = chaos_.cluster().Submit(spec_);
  ASSERT_NE(job_, "") << chaos_.cluster().last_error;
}

void FaultCase::StartAndReach(int64_t iteration) {
  Start();
  EXPECT_TRUE(chaos_.cluster().WaitForIteration(job_, iteration)) << Report(chaos_, job_);
}

void FaultCase::SetFault(const std::string& kind, int node, int pass) {
  spec_["resources"]["env"]["TEST_FAULT"] =
      absl::StrCat(kind, " ", std::string(WorkerOf(node)["worker"]), " ", pass, " ",
                   chaos_.cluster().folder() / "fault-was-done");
}

std::vector<json> FaultCase::Events(const std::string& kind) {
  std::vector<json> events;
  for (const json& event : JsonLines(chaos_.cluster().Muster({"events", job_, "--json"}).out)) {
    if (kind.empty() || event["kind"] == kind) events.push_back(event);
  }
  return events;
}

std::string FaultCase::WaitForEvent(const std::string& kind, int count) {
  std::vector<json> events;
  const bool came = Eventually([&] {
    if (chaos_.coordinator_away()) return false;
    events = Events(kind);
    return static_cast<int>(events.size()) >= count;
  });
  EXPECT_TRUE(came) << count << " of " << kind << "\n" << Report(chaos_, job_);
  return came ? events.back()["text"].get<std::string>() : "";
}

json FaultCase::WorkerOf(int node) {
  const json workers = chaos_.cluster().MusterJson({"workers"});
  for (const json& worker : workers) {
    if (worker["node"] == ChaosCluster::NodeName(node)) return worker;
  }
  ADD_FAILURE() << "node " << ChaosCluster::NodeName(node) << " has no worker: " << workers;
  return nullptr;
}

Result FaultCase::Command(const std::vector<std::string>& words) {
  const Result result = chaos_.cluster().Muster(words);
  EXPECT_EQ(result.code, 0) << result.out << result.err;
  return result;
}

void FaultCase::ExpectSameEnd(double tolerance) {
  SetPace(0);
  ExpectEndsAsUnbroken(chaos_, job_, unbroken_, tolerance);
}

namespace {

// Up to what cannot belong to a number or a duration.
std::string WordAfter(const std::string& text, const std::string& name) {
  const size_t at = text.find(name);
  if (at == std::string::npos) return "";
  const size_t begin = at + name.size();
  return text.substr(begin, text.find_first_of(" ,:;)", begin) - begin);
}

}  // namespace

int64_t NumberAfter(const std::string& text, const std::string& name) {
  const std::string word = WordAfter(text, name);
  return word.empty() ? -1 : std::atoll(word.c_str());
}

absl::Duration DurationAfter(const std::string& text, const std::string& name) {
  absl::Duration duration;
  const bool is_one = absl::ParseDuration(WordAfter(text, name), &duration);
  return is_one ? duration : absl::InfiniteDuration();
}

StepLimit LimitOfSteps(const json& status) {
  for (const json& limit : status["phase_limits"]) {
    if (limit["phase"] != "step" || !limit.contains("p99_ms")) continue;
    return {.limit = absl::Milliseconds(limit["limit_ms"].get<double>()),
            .p99 = absl::Milliseconds(limit["p99_ms"].get<double>())};
  }
  ADD_FAILURE() << "no limit of steps: " << status;
  return {absl::InfiniteDuration(), absl::InfiniteDuration()};
}

absl::Time TimeOf(const json& event) {
  absl::Time time;
  std::string error;
  const bool is_one =
      absl::ParseTime(absl::RFC3339_full, std::string(event["time"]), &time, &error);
  EXPECT_TRUE(is_one) << error;
  return is_one ? time : absl::InfiniteFuture();
}

}  // namespace muster
