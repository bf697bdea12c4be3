#include "worker/moe/permute_kernels.h"

#include <algorithm>
#include <cstring>
#include <type_traits>

#include <ATen/Parallel.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include "worker/parallel/flat_kernels.h"

namespace muster::kernels {
namespace {

constexpr int64_t kGrainBytes = 1 << 16;  // less is not worth a thread

int64_t Grain(int64_t row_bytes) { return kGrainBytes / std::max<int64_t>(row_bytes, 1) + 1; }

const char* Row(const void* base, int64_t row, int64_t row_bytes) {
  return static_cast<const char*>(base) + row * row_bytes;
}
char* Row(void* base, int64_t row, int64_t row_bytes) {
  return static_cast<char*>(base) + row * row_bytes;
}

template <class T>
MUSTER_VECTOR_CLONES void AddRows(const T* const* rows, int64_t num_rows, T* to, int64_t columns) {
  using Acc = std::conditional_t<std::is_same_v<T, double>, double, float>;
  constexpr int64_t kBlock = 256;  // of columns, whose sums stay in the first-level cache
  Acc sums[kBlock];
  for (int64_t begin = 0; begin < columns; begin += kBlock) {
    const int64_t count = std::min(kBlock, columns - begin);
    for (int64_t j = 0; j < count; ++j) sums[j] = static_cast<Acc>(rows[0][begin + j]);
    for (int64_t r = 1; r < num_rows; ++r) {
      const T* row = rows[r] + begin;
      for (int64_t j = 0; j < count; ++j) sums[j] += static_cast<Acc>(row[j]);
    }
    for (int64_t j = 0; j < count; ++j) to[begin + j] = static_cast<T>(sums[j]);
  }
}

}  // namespace

void CopyRows(const void* from, void* to, const int64_t* index, int64_t rows, int64_t row_bytes) {
  at::parallel_for(0, rows, Grain(row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      std::memcpy(Row(to, r, row_bytes), Row(from, index[r], row_bytes), row_bytes);
    }
  });
}

void SpreadRows(const void* from, void* to, const int64_t* first_row, const int64_t* rows_of_token,
                int64_t tokens, int64_t row_bytes) {
  at::parallel_for(0, tokens, Grain(row_bytes), [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t i = first_row[t]; i < first_row[t + 1]; ++i) {
        std::memcpy(Row(to, rows_of_token[i], row_bytes), Row(from, t, row_bytes), row_bytes);
      }
    }
  });
}

template <class T>
void SumRows(const T* from, T* to, const int64_t* first_row, const int64_t* rows_of_token,
             int64_t tokens, int64_t columns) {
  at::parallel_for(0, tokens, Grain(columns * sizeof(T)), [&](int64_t begin, int64_t end) {
    std::vector<const T*> rows;
    for (int64_t t = begin; t < end; ++t) {
      rows.clear();
      for (int64_t i = first_row[t]; i < first_row[t + 1]; ++i) {
        rows.push_back(from + rows_of_token[i] * columns);
      }
      T* sum = to + t * columns;
      if (rows.empty()) {
        std::memset(static_cast<void*>(sum), 0, columns * sizeof(T));
      } else if (rows.size() == 1) {
        std::memcpy(static_cast<void*>(sum), rows[0], columns * sizeof(T));
      } else {
        AddRows(rows.data(), static_cast<int64_t>(rows.size()), sum, columns);
      }
    }
  });
}

void CopyRuns(const void* from, void* to, const std::vector<Run>& runs, int64_t rows,
              int64_t row_bytes) {
  at::parallel_for(0, rows, Grain(row_bytes), [&](int64_t begin, int64_t end) {
    auto run = std::upper_bound(runs.begin(), runs.end(), begin,
                                [](int64_t row, const Run& r) { return row < r.to + r.rows; });
    for (; begin < end; ++run) {
      const int64_t offset = begin - run->to, count = std::min(run->rows - offset, end - begin);
      std::memcpy(Row(to, begin, row_bytes), Row(from, run->from + offset, row_bytes),
                  count * row_bytes);
      begin += count;
    }
  });
}

#define MUSTER_SUM_ROWS(T) \
  template void SumRows<T>(const T*, T*, const int64_t*, const int64_t*, int64_t, int64_t);
MUSTER_SUM_ROWS(float)
MUSTER_SUM_ROWS(double)
MUSTER_SUM_ROWS(c10::BFloat16)
MUSTER_SUM_ROWS(c10::Half)
#undef MUSTER_SUM_ROWS

}  // namespace muster::kernels
