// The messages of one pipeline rank in one run of its schedule: activations to the next stage,
// their gradients to the one before (reference 4.3).
//
// The executor says which passes are done (Put) and what the next one needs (Take); Post carries
// out one exchange of the list. Not overlapped, an exchange is waited for where it stands. With
// overlap it is left to run behind the computation: Take waits for what it returns, and a rank
// leaves at most kMaxPendingExchanges with sends unfinished in each direction. A tensor that is on
// its way is kept by its operation. Every wait has the communicator's limit.
//
// Neighbours are ranks pp_rank +- 1, around the ends (a chunk of the first rank follows one of the
// last). Channel 0 carries activations, channel 1 gradients, each in the order of the lists.
// One thread.
#pragma once

#include <array>
#include <deque>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "common/schedule/pipeline_schedule.h"
#include "worker/comm/communicator.h"

namespace muster {

class PipelineExchange {
 public:
  struct Options {
    Communicator* pp = nullptr;         // null: a list without messages
    std::vector<int64_t> hidden_shape;  // of every message
    at::ScalarType hidden_dtype = at::kFloat;
    at::Device device = at::kCPU;
    bool overlap = false;
  };
  static constexpr size_t kMaxPendingExchanges = 2;

  explicit PipelineExchange(Options options) : options_(std::move(options)) {}
  PipelineExchange(const PipelineExchange&) = delete;
  PipelineExchange& operator=(const PipelineExchange&) = delete;

  // Before the first exchange; every stage calls it.
  absl::Status Open();
  // The operations of one exchange number. FAILED_PRECONDITION: a pass whose output it sends has
  // not run.
  absl::Status Post(absl::Span<const ScheduleOp> ops);
  // The message of a send operation to come. INVALID_ARGUMENT: not of the shape and type that
  // stages exchange.
  absl::Status Put(ScheduleOp::Kind send, int chunk, int microbatch, const at::Tensor& message);
  // The message of a receive operation, once it is here.
  absl::StatusOr<at::Tensor> Take(ScheduleOp::Kind receive, int chunk, int microbatch);
  // Gives a received message back, to be received into again unless others still read it.
  void Recycle(at::Tensor message);
  // Until every send is done.
  absl::Status Finish();

 private:
  using Key = std::pair<int, int>;  // chunk, microbatch
  struct Received {
    at::Tensor tensor;
    WorkPtr work;  // null: it has ended
  };
  using Pending = std::deque<WorkPtr>;  // exchanges with sends, oldest first

  at::Tensor Buffer();
  // Drops what is done, and waits for the oldest while more than `most_left` are not.
  static absl::Status Forget(Pending& pending, size_t most_left);

  const Options options_;
  // By direction: 0 forward, 1 backward.
  std::array<std::map<Key, at::Tensor>, 2> to_send_;
  std::array<std::map<Key, Received>, 2> received_;
  std::array<Pending, 2> pending_;
  std::vector<at::Tensor> spare_;
};

}  // namespace muster
