#include "common/dataset/mock_documents.h"

#include "common/dataset/numpy_random.h"

namespace muster {

MockDocuments::MockDocuments(int64_t vocab_size) : vocab_size_(vocab_size) {
  lengths_.reserve(kNumDocuments);
  NumpyPcg64 random = NumpyPcg64::DefaultRng0();
  for (int64_t d = 0; d < kNumDocuments; ++d) lengths_.push_back(random.Integer(1, 4096));
}

void MockDocuments::Read(int64_t sequence, int64_t offset, int64_t count, int64_t* tokens) const {
  const int64_t last = sequence_length(sequence) - 1;
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = offset + i;
    tokens[i] = position == last ? eod() : (position + 1) % vocab_size_;
  }
}

}  // namespace muster
