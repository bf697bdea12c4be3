#include "tests/integration/chaos/fault_schedule.h"

#include <random>

#include "absl/strings/str_format.h"

namespace muster {
namespace {

using Kind = Fault::Kind;

struct Weight {
  Kind kind;
  const char* text;
  uint32_t weight;
  int least_ms, most_ms;  // how long it lasts
};
// Two heartbeat limits are the longest that anything stays away: most of a run should be training.
constexpr Weight kWeights[] = {
    {Kind::kKillTrainer, "kill trainer", 8, 0, 0},
    {Kind::kStopTrainer, "stop trainer", 3, 20, 3000},
    {Kind::kKillAgent, "kill agent", 3, 0, 2500},
    {Kind::kStopAgent, "stop agent", 2, 20, 3000},
    {Kind::kKillNode, "kill node", 2, 0, 2500},
    {Kind::kKillCoordinator, "kill coordinator", 3, 0, 1000},
    {Kind::kStopCoordinator, "stop coordinator", 1, 20, 2000},
    {Kind::kDrainNode, "drain node", 3, 20, 2500},
};

bool HitsAgents(Kind kind) {
  return kind == Kind::kKillAgent || kind == Kind::kStopAgent || kind == Kind::kKillNode ||
         kind == Kind::kDrainNode;
}

absl::Duration Between(std::mt19937& random, int least_ms, int most_ms) {
  return absl::Milliseconds(least_ms + static_cast<int>(random() % (most_ms - least_ms + 1)));
}

}  // namespace

std::vector<Fault> MakeSchedule(const ScheduleOptions& options) {
  std::mt19937 random(options.seed);
  uint32_t sum = 0;
  for (const Weight& row : kWeights) {
    if (options.agents || !HitsAgents(row.kind)) sum += row.weight;
  }
  std::vector<Fault> schedule;
  for (int i = 0; i < options.num_faults; ++i) {
    uint32_t draw = random() % sum;
    for (const Weight& row : kWeights) {
      if (!options.agents && HitsAgents(row.kind)) continue;
      if (draw >= row.weight) {
        draw -= row.weight;
        continue;
      }
      Fault fault{.kind = row.kind, .target = static_cast<uint32_t>(random())};
      fault.lasts = Between(random, row.least_ms, row.most_ms);
      switch (random() % 3) {
        case 0:
          fault.after = absl::ZeroDuration();
          break;
        case 1:
          fault.after = Between(random, 1, 300);
          break;
        default:
          fault.after = Between(random, 300, 1500);
      }
      schedule.push_back(fault);
      break;
    }
  }
  return schedule;
}

std::string Describe(const Fault& fault) {
  for (const Weight& row : kWeights) {
    if (row.kind != fault.kind) continue;
    std::string text = absl::StrFormat("after %d ms: %s %d", absl::ToInt64Milliseconds(fault.after),
                                       row.text, static_cast<int>(fault.target % 100));
    if (row.most_ms > 0)
      absl::StrAppendFormat(&text, " for %d ms", absl::ToInt64Milliseconds(fault.lasts));
    return text;
  }
  return "?";
}

}  // namespace muster
