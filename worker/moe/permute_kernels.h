// Loops of permute.h over plain memory; rows are dense. Sequential: the callers spread tokens or
// rows over threads.
#pragma once

#include <cstdint>
#include <vector>

#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

namespace muster::kernels {

// The rows of each token t of [begin, end): rows_of_token[first_row[t], first_row[t + 1]).
struct TokenRows {
  const int64_t* first_row;
  const int64_t* rows_of_token;
  int64_t begin = 0, end = 0;
};

// to[r] = from[t] for the rows r of each token: reads each token once.
void SpreadRows(const void* from, void* to, int64_t row_bytes, const TokenRows& tokens);

// to[t] = sum of from[r] over the rows r of each token, in their order; in fp32 or, for double,
// fp64, and rounded once.
void SumRows(const float* from, float* to, int64_t columns, const TokenRows& tokens);
void SumRows(const double* from, double* to, int64_t columns, const TokenRows& tokens);
void SumRows(const c10::BFloat16* from, c10::BFloat16* to, int64_t columns,
             const TokenRows& tokens);
void SumRows(const c10::Half* from, c10::Half* to, int64_t columns, const TokenRows& tokens);

struct Run {
  int64_t from = 0, to = 0, rows = 0;
};
// Rows [begin, end) of `to`, which consists of the runs, in this order and without gaps.
void CopyRuns(const void* from, void* to, int64_t row_bytes, const std::vector<Run>& runs,
              int64_t begin, int64_t end);

}  // namespace muster::kernels
