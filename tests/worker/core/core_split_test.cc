#include "worker/core/core_split.h"

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace muster {
namespace {

// `nodes` nodes of `cores` physical cores with `threads` threads each, numbered as Linux does on
// x86: first all first threads, node by node, then all second ones.
std::vector<Core> Machine(int nodes, int cores, int threads = 1) {
  std::vector<Core> result;
  for (int cpu = 0; cpu < nodes * cores * threads; ++cpu) {
    const int physical = cpu % (nodes * cores);
    result.push_back({.cpu = cpu, .physical = physical, .numa_node = physical / cores});
  }
  return result;
}

std::string Text(const std::vector<WorkerCores>& workers) {
  return absl::StrJoin(workers, " | ", [](std::string* out, const WorkerCores& worker) {
    absl::StrAppend(out, worker.cpus.empty() ? "-" : CpuList(worker.cpus));
    if (worker.numa_node >= 0) absl::StrAppend(out, " @", worker.numa_node);
  });
}

TEST(CoreSplitTest, SharesOutTheCores) {
  constexpr std::nullopt_t kDefault = std::nullopt;
  struct Row {
    const char* name;
    std::vector<Core> cores;
    std::vector<int> device_nodes;
    std::optional<BindMode> mode;
    const char* expected;
  };
  const Row rows[] = {
      {"one worker keeps all", Machine(1, 4), {-1}, kDefault, "-"},
      {"two of four", Machine(1, 4), {-1, -1}, kDefault, "0-1 @0 | 2-3 @0"},
      {"one each", Machine(1, 2), {-1, -1}, kDefault, "0 @0 | 1 @0"},
      {"more workers than cores", Machine(1, 2), {-1, -1, -1}, kDefault, "- | - | -"},
      {"uneven", Machine(1, 5), {-1, -1}, kDefault, "0-1 @0 | 2-4 @0"},
      {"both threads of a core", Machine(1, 4, 2), {-1, -1}, kDefault, "0-1,4-5 @0 | 2-3,6-7 @0"},
      {"fewer cores than workers, threads do",
       Machine(1, 2, 2),
       {-1, -1, -1},
       kDefault,
       "0 @0 | 2 @0 | 1,3 @0"},
      {"nodes do not mix", Machine(2, 2), {-1, -1}, kDefault, "0-1 @0 | 2-3 @1"},
      {"four on two nodes",
       Machine(2, 4),
       {-1, -1, -1, -1},
       kDefault,
       "0-1 @0 | 2-3 @0 | 4-5 @1 | 6-7 @1"},
      {"three on two nodes", Machine(2, 3), {-1, -1, -1}, kDefault, "0-1 @0 | 2-3 | 4-5 @1"},
      {"devices on their nodes",
       Machine(2, 4),
       {1, 1, 0, 0},
       kDefault,
       "4-5 @1 | 6-7 @1 | 0-1 @0 | 2-3 @0"},
      {"all devices on one node", Machine(2, 4), {1, 1}, kDefault, "4-5 @1 | 6-7 @1"},
      {"a device of unknown place takes the free node",
       Machine(2, 4),
       {0, -1},
       kDefault,
       "0-3 @0 | 4-7 @1"},
      {"a node without allowed cores",
       {{.cpu = 8, .physical = 8}, {.cpu = 9, .physical = 9}},
       {1, 1},
       kDefault,
       "8 @0 | 9 @0"},
      {"one worker, asked", Machine(1, 4), {-1}, BindMode::kCores, "0-3 @0"},
      {"one device, asked", Machine(2, 4), {1}, BindMode::kCores, "4-7 @1"},
      {"none, asked", Machine(1, 4), {-1, -1}, BindMode::kNone, "- | -"},
      {"numa", Machine(2, 2), {-1, -1, -1}, BindMode::kNuma, "0-1 @0 | 2-3 @1 | 0-1 @0"},
      {"numa with devices", Machine(2, 2), {1, 1}, BindMode::kNuma, "2-3 @1 | 2-3 @1"},
      {"what the mask allows",
       {{.cpu = 3, .physical = 3}, {.cpu = 7, .physical = 7}, {.cpu = 12, .physical = 12}},
       {-1, -1, -1},
       kDefault,
       "3 @0 | 7 @0 | 12 @0"},
      {"crowded node shares", Machine(2, 2), {0, 0, 0}, kDefault, "0-1 @0 | 0-1 @0 | 0-1 @0"},
      {"nothing known", {}, {-1, -1}, kDefault, "- | -"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const auto split = SplitCores(row.cores, row.device_nodes, row.mode);
    ASSERT_TRUE(split.ok()) << split.status();
    EXPECT_EQ(Text(*split), row.expected);
  }
}

TEST(CoreSplitTest, PartsAreDisjointAndLeaveNoCore) {
  for (int nodes = 1; nodes <= 4; ++nodes) {
    for (int cores = 1; cores <= 8; ++cores) {
      for (int threads = 1; threads <= 2; ++threads) {
        const std::vector<Core> machine = Machine(nodes, cores, threads);
        for (size_t workers = 2; workers <= machine.size(); ++workers) {
          SCOPED_TRACE(absl::StrCat(nodes, "x", cores, "x", threads, " for ", workers));
          const auto split = SplitCores(machine, std::vector<int>(workers, -1), std::nullopt);
          ASSERT_TRUE(split.ok());
          std::set<int> seen;
          size_t least = machine.size(), most = 0;
          for (const WorkerCores& worker : *split) {
            for (const int cpu : worker.cpus) EXPECT_TRUE(seen.insert(cpu).second) << cpu;
            least = std::min(least, worker.cpus.size());
            most = std::max(most, worker.cpus.size());
          }
          EXPECT_EQ(seen.size(), machine.size());
          EXPECT_LE(most - least, size_t(threads));
          EXPECT_GE(least, 1u);
        }
      }
    }
  }
}

TEST(CoreSplitTest, AskingForMoreThanThereIsIsAnError) {
  const auto split = SplitCores(Machine(1, 2), {-1, -1, -1}, BindMode::kCores);
  ASSERT_FALSE(split.ok());
  EXPECT_THAT(std::string(split.status().message()), ::testing::HasSubstr("2 cores for 3 workers"));
  EXPECT_FALSE(ParseBindMode("core").ok());
  EXPECT_TRUE(ParseBindMode("numa").ok());
}

TEST(CoreSplitTest, CpuListsRoundTrip) {
  for (const char* text : {"", "0", "0-3", "0,2-3,7", "1,3,5"}) {
    const auto cpus = ParseCpuList(text);
    ASSERT_TRUE(cpus.has_value()) << text;
    EXPECT_EQ(CpuList(*cpus), text);
  }
  for (const char* text : {"x", "3-1", "1-", "-1", "0-99999999"}) {
    EXPECT_FALSE(ParseCpuList(text).has_value()) << text;
  }
}

}  // namespace
}  // namespace muster
