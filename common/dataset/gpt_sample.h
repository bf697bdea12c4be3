// From a text of s + 1 tokens to what the model is fed: tokens, labels, loss mask, position ids and
// attention mask (Megatron's GPTDataset.__getitem__ and _get_ltor_masks_and_position_ids). Pure.
#pragma once

#include <cstdint>

namespace muster {

struct GptSampleOptions {
  int64_t seq_length = 0;  // s
  int64_t eod = 0;
  int64_t pad = -1;  // id whose labels do not count; -1: the vocabulary has none
  bool reset_position_ids = false;
  bool reset_attention_mask = false;
  bool eod_mask_loss = false;
};

// Where one sample is written; all of s elements, attention_mask of s * s or null (plain causal).
struct GptSampleBuffers {
  int64_t* tokens = nullptr;
  int64_t* labels = nullptr;
  float* loss_mask = nullptr;  // 1 counts, 0 does not
  int64_t* position_ids = nullptr;
  bool* attention_mask = nullptr;  // row i, column j: true = token i does not see token j
};

// `text`: s + 1 tokens, kNoToken (-1) where there is none. Padding becomes token 0 with mask 0.
void FillGptSample(const int64_t* text, const GptSampleOptions& options,
                   const GptSampleBuffers& buffers);

}  // namespace muster
