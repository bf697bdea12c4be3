// bench-shared-memory RANKS ROUNDS: what an operation between the processes of one node takes, over
// shared memory and over gloo's loopback, one after the other in every round. Every rank is a
// process with one thread; the slowest rank's time counts. `size` is the tensor of an all-reduce,
// the whole input of a reduce-scatter, the whole output of an all-gather, one message.
#include <ATen/ATen.h>
#include <ATen/Parallel.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "tests/support/rank_processes.h"
#include "worker/comm/gloo_communicator.h"
#include "worker/comm/node_communicator.h"

namespace muster {
namespace {

constexpr int64_t kSizes[] = {4 << 10, 16 << 10, 64 << 10, 256 << 10,
                              1 << 20, 4 << 20,  16 << 20, 64 << 20};
const char* const kBackends[] = {"shared memory", "gloo"};

int64_t NowNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec * int64_t{1'000'000'000} + t.tv_nsec;
}

struct Case {
  const char* name;
  // Tensors are made once; each call of the result is one operation.
  std::function<std::function<WorkPtr()>(Communicator& world, int64_t num_floats)> prepare;
};

std::vector<Case> Cases() {
  return {
      {"all_reduce",
       [](Communicator& world, int64_t n) {
         at::Tensor t = at::zeros({n});
         return [&world, t] { return world.AllReduce(t, ReduceOp::kSum); };
       }},
      {"reduce_scatter",
       [](Communicator& world, int64_t n) {
         at::Tensor in = at::zeros({n}), out = at::zeros({n / world.size()});
         return [&world, in, out] { return world.ReduceScatter(out, in, ReduceOp::kSum); };
       }},
      {"all_gather",
       [](Communicator& world, int64_t n) {
         at::Tensor in = at::zeros({n / world.size()}), out = at::zeros({n});
         return [&world, in, out] { return world.AllGather(out, in); };
       }},
      {"all_to_all",
       [](Communicator& world, int64_t n) {
         at::Tensor in = at::zeros({n}), out = at::zeros({n});
         return [&world, in, out] { return world.AllToAll(out, in, {}, {}); };
       }},
      {"broadcast",
       [](Communicator& world, int64_t n) {
         at::Tensor t = at::zeros({n});
         return [&world, t] { return world.Broadcast(t, 0); };
       }},
      // Around the ring: everybody sends to its right and receives from its left.
      {"send_recv",
       [](Communicator& world, int64_t n) {
         at::Tensor out = at::zeros({n}), in = at::zeros({n});
         const int size = world.size(), me = world.rank();
         return [&world, in, out, size, me] {
           return world.SendRecv({{P2POp::Kind::kSend, out, (me + 1) % size},
                                  {P2POp::Kind::kRecv, in, (me + size - 1) % size}});
         };
       }},
  };
}

// The same number on all ranks, from the sizes alone.
int Repetitions(int64_t bytes) {
  return static_cast<int>(std::clamp<int64_t>((8 << 20) / bytes, 2, 100));
}

void RunRank(RankLink& link, int size, int num_rounds) {
  at::set_num_threads(1);
  std::vector<CommunicatorPtr> worlds;
  for (int backend = 0; backend < 2; ++backend) {
    const NodeOptions options{.gloo = {.name = kBackends[backend],
                                       .rank = link.rank(),
                                       .size = size,
                                       .epoch = 1,
                                       .store = link.Store(1)}};
    auto world = backend == 0 ? StartNodeWorld(options) : FormGlooWorld(options.gloo);
    if (!world.ok()) return link.Say(world.status().ToString());
    worlds.push_back(*world);
  }
  for (const Case& one : Cases()) {
    for (const int64_t bytes : kSizes) {
      std::vector<double> us[2];
      std::function<WorkPtr()> issue[2];
      for (int b = 0; b < 2; ++b) issue[b] = one.prepare(*worlds[b], bytes / 4);
      for (int round = -1; round < num_rounds; ++round) {  // the first warms up
        for (int b = 0; b < 2; ++b) {
          if (!worlds[b]->Barrier()->Wait().ok()) return link.Say("barrier failed");
          const int n = Repetitions(bytes);
          const int64_t begin = NowNs();
          for (int i = 0; i < n; ++i) {
            if (absl::Status s = issue[b]()->Wait(); !s.ok()) return link.Say(s.ToString());
          }
          at::Tensor took = at::full({1}, (NowNs() - begin) / 1e3 / n, at::kDouble);
          (void)worlds[b]->AllReduce(took, ReduceOp::kMax)->Wait();
          if (round >= 0) us[b].push_back(took.item<double>());
        }
      }
      if (link.rank() != 0) continue;
      double median[2];
      for (int b = 0; b < 2; ++b) {
        std::sort(us[b].begin(), us[b].end());
        median[b] = us[b][us[b].size() / 2];
      }
      std::printf(
          "%-15s %d ranks %8ld KiB  ours %10.1f us %6.2f GB/s  gloo %10.1f us %6.2f GB/s"
          "  ratio %6.2f\n",
          one.name, size, static_cast<long>(bytes >> 10), median[0], bytes / median[0] / 1e3,
          median[1], bytes / median[1] / 1e3, median[1] / median[0]);
      std::fflush(stdout);
    }
  }
  (void)worlds[1]->Barrier()->Wait();
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  int size = 2, num_rounds = 5;
  if (argc != 3 || !absl::SimpleAtoi(argv[1], &size) || !absl::SimpleAtoi(argv[2], &num_rounds)) {
    std::fprintf(stderr, "usage: bench-shared-memory RANKS ROUNDS\n");
    return 2;
  }
  const auto complaints = muster::RunForked(
      size, [&](muster::RankLink& link) { muster::RunRank(link, size, num_rounds); },
      absl::Minutes(20));
  for (const std::string& line : complaints) std::fprintf(stderr, "%s\n", line.c_str());
  return complaints.empty() ? 0 : 1;
}
