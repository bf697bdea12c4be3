// A trainer of a linear model in few lines, with the real decisions of common/recovery: what a
// process does between two agreements, and when it finds itself in a new epoch. recovery_model.h
// says it in pure form; here it is a process that SIGKILL ends. No torch, no threads.
//
// The hub (linear_hub.h) is coordinator, agent and communicator in one: a rank sends a packet and
// waits for what all have sent. Snapshots lie in a memfd of the hub's.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

namespace muster {

constexpr int kLinearRanks = 2;
constexpr int kLinearFeatures = 6;

// End this process at a named point: of a step (before_epoch 0: in training), or of the recovery
// that forms an epoch.
struct Kill {
  int rank = 0;
  std::string point;
  int64_t step = 0;   // of training points
  int64_t epoch = 0;  // of recovery points; 0: a training point
};

struct LinearJob {
  bool sharded = false;  // each rank holds one half of weights and momenta; else both hold all
  int64_t steps = 6, interval = 1;
  std::vector<Kill> kills;
};

// The points of a step in their order, and those of a recovery.
inline constexpr std::array kStepPoints = {"begun",      "prepared",   "agreed",
                                           "committed",  "reported",   "own torn",
                                           "own copied", "buddy torn", "buddy copied"};
inline constexpr std::array kRecoveryPoints = {"formed", "decided", "finished", "filled",
                                               "started"};

// What one rank holds, live or in a slot. Plain bytes: it travels and lies in memory as it is.
struct LinearState {
  int64_t iteration = 0, epoch = 0;
  std::array<double, kLinearFeatures> weights{}, momenta{};  // a half is used where sharded
  double last_loss = 0;  // of step `iteration`: its report is a part of the state
};

struct LinearSlot {
  int64_t complete = 0;  // written last
  LinearState state;
};

// The memfd of a worker. Three slots each for its own and its buddy's generations.
struct LinearMemory {
  LinearSlot own[3], kept[3];
};

// Messages are packets: a letter, then numbers as text, a newline, and bytes. To the hub:
//   J            in no epoch: tell me the next          -> A epoch
//   E epoch tag  exchange: bytes of this rank           -> R, bytes of all ranks in order, or B
//   S step batch loss                                   (no answer)
//   D epoch      trained; bytes: the state              -> Q (all have), or B
// B: the epoch was aborted.
[[noreturn]] void RunLinearTrainer(const LinearJob& job, int rank, int socket, int memory);

}  // namespace muster
