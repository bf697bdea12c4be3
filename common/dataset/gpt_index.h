// The three index arrays of a GPT dataset (Megatron's GPTDataset, _build_document_sample_shuffle_
// indices and the helpers of its C++ extension): which documents follow each other, where each
// sample begins, and in which order samples are read. A "document" here is one sequence of the
// indexed file. A function of its inputs. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "common/dataset/npy_file.h"
#include "common/dataset/token_source.h"

namespace muster {

struct GptIndexOptions {
  int64_t first_sequence = 0, end_sequence = 0;  // the split's range [first, end)
  int64_t seq_length = 0;                        // s, tokens
  std::optional<int64_t> num_samples;            // N; nullopt: one epoch
  int64_t seed = 1234;
  bool add_extra_token = true;    // x = 1: labels are the tokens shifted by one
  bool drop_last_partial = true;  // false for validation: the last short sample is kept, padded
};

struct GptIndex {
  IndexArray document;  // (E * documents) int32: sequence ids, epoch after epoch, shuffled
  // (samples + 1, 2) int32, or int64 where values need it: position in `document` and token offset
  // where sample k begins; row k + 1 is where it ends.
  IndexArray sample;
  IndexArray shuffle;  // (samples) uint32, int64 from 2^32 - 2 on

  int64_t num_samples() const { return shuffle.size(); }
};

// Epochs needed and whether the last one is shuffled apart (less than 80 % of it is used).
struct GptEpochs {
  int64_t num_epochs = 1;
  bool separate_last_epoch = false;
  int64_t samples_before_last_epoch = 0;  // A; 0 with one epoch
};
GptEpochs CountEpochs(int64_t tokens_per_epoch, int64_t seq_length,
                      std::optional<int64_t> num_samples, bool add_extra_token);

// FAILED_PRECONDITION: no tokens, or too few for one sample.
absl::StatusOr<GptIndex> BuildGptIndex(const TokenSource& source, const GptIndexOptions& options);

}  // namespace muster
