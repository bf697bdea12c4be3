#include "worker/moe/permute_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include "worker/parallel/flat_kernels.h"  // MUSTER_VECTOR_CLONES

namespace muster::kernels {
namespace {

#define MUSTER_INLINE __attribute__((always_inline)) inline

const char* Row(const void* base, int64_t row, int64_t row_bytes) {
  return static_cast<const char*>(base) + row * row_bytes;
}
char* Row(void* base, int64_t row, int64_t row_bytes) {
  return static_cast<char*>(base) + row * row_bytes;
}

template <class T>
MUSTER_INLINE void SumRowsLoop(const T* from, T* to, int64_t columns, const TokenRows& tokens) {
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  constexpr int64_t kBlock = 512;  // columns whose sums stay in the first-level cache
  Acc sums[kBlock];
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    const int64_t* const rows = tokens.rows_of_token + tokens.first_row[t];
    const int64_t num_rows = tokens.first_row[t + 1] - tokens.first_row[t];
    T* __restrict const sum = to + t * columns;
    if (num_rows == 0) {
      std::fill(sum, sum + columns, T(0));
    } else if (num_rows == 1) {
      std::copy(from + rows[0] * columns, from + (rows[0] + 1) * columns, sum);
    } else if (num_rows == 2) {
      const T *a = from + rows[0] * columns, *b = from + rows[1] * columns;
      for (int64_t j = 0; j < columns; ++j) {
        sum[j] = static_cast<T>(static_cast<Acc>(a[j]) + static_cast<Acc>(b[j]));
      }
    } else {
      for (int64_t begin = 0; begin < columns; begin += kBlock) {
        const int64_t count = std::min(kBlock, columns - begin);
        const T* first = from + rows[0] * columns + begin;
        for (int64_t j = 0; j < count; ++j) sums[j] = static_cast<Acc>(first[j]);
        for (int64_t r = 1; r < num_rows; ++r) {
          const T* row = from + rows[r] * columns + begin;
          for (int64_t j = 0; j < count; ++j) sums[j] += static_cast<Acc>(row[j]);
        }
        for (int64_t j = 0; j < count; ++j) sum[begin + j] = static_cast<T>(sums[j]);
      }
    }
  }
}

}  // namespace

void SpreadRows(const void* from, void* to, int64_t row_bytes, const TokenRows& tokens) {
  for (int64_t t = tokens.begin; t < tokens.end; ++t) {
    for (int64_t i = tokens.first_row[t]; i < tokens.first_row[t + 1]; ++i) {
      std::memcpy(Row(to, tokens.rows_of_token[i], row_bytes), Row(from, t, row_bytes), row_bytes);
    }
  }
}

#define MUSTER_DEFINE_SUM_ROWS(T)                                          \
  MUSTER_VECTOR_CLONES void SumRows(const T* from, T* to, int64_t columns, \
                                    const TokenRows& tokens) {             \
    SumRowsLoop<T>(from, to, columns, tokens);                             \
  }
MUSTER_DEFINE_SUM_ROWS(float)
MUSTER_DEFINE_SUM_ROWS(double)
MUSTER_DEFINE_SUM_ROWS(c10::BFloat16)
MUSTER_DEFINE_SUM_ROWS(c10::Half)
#undef MUSTER_DEFINE_SUM_ROWS

void CopyRuns(const void* from, void* to, int64_t row_bytes, const std::vector<Run>& runs,
              int64_t begin, int64_t end) {
  auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                              [](int64_t row, const Run& r) { return row < r.to + r.rows; });
  for (; begin < end; ++run) {
    const int64_t offset = begin - run->to, count = std::min(run->rows - offset, end - begin);
    std::memcpy(Row(to, begin, row_bytes), Row(from, run->from + offset, row_bytes),
                count * row_bytes);
    begin += count;
  }
}

}  // namespace muster::kernels
