#include "common/dataset/gpt_sample.h"

#include <algorithm>

namespace muster {

void FillGptSample(const int64_t* text, const GptSampleOptions& options,
                   const GptSampleBuffers& buffers) {
  const int64_t s = options.seq_length;
  int64_t document_begin = 0;  // first position that is in the same document as position i
  for (int64_t i = 0; i < s; ++i) {
    const bool no_token = text[i] < 0 || text[i] == options.pad;
    const bool no_label = text[i + 1] < 0 || text[i + 1] == options.pad;
    const bool is_eod = text[i] == options.eod;
    buffers.tokens[i] = no_token ? 0 : text[i];
    buffers.labels[i] = no_label ? 0 : text[i + 1];
    buffers.loss_mask[i] = no_label || (options.eod_mask_loss && is_eod) ? 0.0f : 1.0f;
    buffers.position_ids[i] = options.reset_position_ids ? i - document_begin : i;
    if (buffers.attention_mask != nullptr) {
      bool* const row = buffers.attention_mask + i * s;
      const int64_t visible_from = options.reset_attention_mask ? document_begin : 0;
      std::fill(row, row + visible_from, true);
      std::fill(row + visible_from, row + i + 1, false);
      std::fill(row + i + 1, row + s, true);
    }
    if (is_eod) document_begin = i + 1;  // an eod belongs to the document that it ends
  }
}

}  // namespace muster
