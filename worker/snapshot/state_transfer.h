// Fills the tensors of those that lack a job's state from those that hold it, over one
// communicator. What is held and what is wanted are slices of the job's tensors (checkpoint.h), so
// that givers and takers may have different layouts. Collective; the caller's thread.
//
// - Every wanted element comes from exactly one giver: the member's own offers first, in their
//   order, without any traffic (and without a copy where the offer is the wanted memory itself);
//   then other members', each slice from the one that has the least to give so far.
// - Dtypes are converted where they differ, as in loads; else bits are kept.
// - Messages are bounded: at most `max_bytes_in_flight` of buffers a member, whatever is moved.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "absl/status/statusor.h"
#include "worker/checkpoint/checkpoint.h"
#include "worker/comm/communicator.h"

namespace muster {

struct TransferRequest {
  // What this member holds of the iteration that all go on from; an element that it holds twice is
  // given from the earlier one. Tensors of any device; mapped memory will do. Unchanged.
  std::vector<NamedTensor> gives;
  // To be filled. With allow_dim0_padding rows beyond the givers' keep their values.
  std::vector<NamedTensor> wants;
  // Small texts by key, e.g. "common", or "rng.pp0.tp1": givers of one key hold the same text.
  std::map<std::string, std::string> gives_texts;
  std::vector<std::string> wants_texts;
  std::vector<std::string> likes_texts;  // left out where nobody holds them
  c10::Device device = c10::kCPU;        // the communicator's
  int64_t max_bytes_in_flight = 64 << 20;
};

struct TransferResult {
  std::map<std::string, std::string> texts;  // those of wants_texts and likes_texts
  int64_t bytes_moved = 0;                   // between all members; the same on every one
  int64_t bytes_received = 0;                // by this one
  int64_t bytes_sent = 0;
  int64_t bytes_copied = 0;  // from this member's own offers
};

// A member with nothing to give or to want takes part with an empty request. The same error on
// every member, and then nothing was written: INVALID_ARGUMENT: a tensor that is no slice;
// FAILED_PRECONDITION: the tensor and the range (or the text's key) that a member wants and nobody
// holds, or global shapes that differ. Errors of the communicator: tensors may be partly filled.
absl::StatusOr<TransferResult> TransferState(const TransferRequest& request, Communicator& members);

}  // namespace muster
