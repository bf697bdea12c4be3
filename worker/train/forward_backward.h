// Carries out a schedule: forward and backward passes of a step's (or an evaluation's)
// microbatches and the exchanges with the neighbouring stages, in the order that the list says
// (reference 4.1, 5.1). One thread.
//
// Of an output that was sent only its place in the autograd graph is kept; its memory goes with the
// message (reference 4.1, output deallocation). The last stage, where losses are computed, is the
// chunk that sends no activations.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "absl/status/statusor.h"
#include "common/schedule/pipeline_schedule.h"
#include "worker/parallel/data_parallel.h"
#include "worker/provider/provider.h"
#include "worker/train/trace_recorder.h"

namespace muster {

struct ForwardBackwardOptions {
  const RankSchedule& schedule;
  int64_t num_microbatches = 1;
  ForwardStep& forward_step;
  // By chunk of the schedule. Every chunk reads the same microbatches through an iterator of its
  // own.
  std::vector<ModelChunk*> chunks;
  std::vector<DataIterator*> data;
  DataParallel* ddp = nullptr;  // null: forward only
  bool calculate_per_token_loss = false;
  double loss_scale = 1;          // multiplied into the loss before its backward pass
  int context_parallel_size = 1;  // in the mean of losses whose tokens are not counted

  // What stages exchange; not used where `pp` is null or a group of one.
  Communicator* pp = nullptr;
  std::vector<int64_t> hidden_shape;         // (S / cp [/ tp with sequence parallel], B, H)
  at::ScalarType hidden_dtype = at::kFloat;  // the parameters'
  at::Device device = at::kCPU;
  bool overlap_p2p_comm = false;   // as in the schedule's options: exchanges are not waited for
  TraceRecorder* trace = nullptr;  // records the passes; null: nobody does
};

// What a microbatch's forward pass on a chunk gave that may be validated.
struct PassResult {
  at::Tensor loss_sum;  // scalar, detached: not normalised; the last stage's
  std::vector<ProviderCheck> checks;
};

struct ForwardBackwardResult {
  // Filled on the last stage only. Per key of the loss function: [sum, count] summed over
  // microbatches, or [mean of values] for one-element reports.
  std::map<std::string, at::Tensor> reported;
  at::Tensor num_tokens;           // scalar int64: of all microbatches, on this rank; 0 elsewhere
  std::vector<PassResult> passes;  // in the order of the schedule; of training, on any stage, those
                                   // that have anything
};

// Errors: of the data iterator (OUT_OF_RANGE: no more data), the forward step, the exchanges and
// the collectives of the overlap; INVALID_ARGUMENT, FAILED_PRECONDITION for a list that does not
// fit the options or itself. Throws CollectiveError out of passes. Other stages are left waiting:
// the caller aborts.
absl::StatusOr<ForwardBackwardResult> RunForwardBackward(const ForwardBackwardOptions& options);

// Sums the [sum, count] reports over dp_cp and divides; leaves one-element reports as they are
// (reference 5.3).
absl::StatusOr<std::map<std::string, double>> ReduceReported(
    const std::map<std::string, at::Tensor>& reported, Communicator& dp_cp);

}  // namespace muster
