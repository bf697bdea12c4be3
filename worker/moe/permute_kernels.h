// Loops of permute.h over plain memory; rows are dense. Spread over torch's threads.
#pragma once

#include <cstdint>
#include <vector>

namespace muster::kernels {

// to[i] = from[index[i]]: rows of `row_bytes` bytes.
void CopyRows(const void* from, void* to, const int64_t* index, int64_t rows, int64_t row_bytes);
// to[r] = from[t] for the rows r of each token t: reads each token once.
void SpreadRows(const void* from, void* to, const int64_t* first_row, const int64_t* rows_of_token,
                int64_t tokens, int64_t row_bytes);
// to[t] = sum of from[r] over the rows r of token t, in their order.
template <class T>
void SumRows(const T* from, T* to, const int64_t* first_row, const int64_t* rows_of_token,
             int64_t tokens, int64_t columns);

struct Run {
  int64_t from = 0, to = 0, rows = 0;
};
// Runs of rows, in the order of `to` and without gaps; `rows` in all.
void CopyRuns(const void* from, void* to, const std::vector<Run>& runs, int64_t rows,
              int64_t row_bytes);

}  // namespace muster::kernels
