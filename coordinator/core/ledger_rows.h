// Rows of a job's ledger as values again, for whoever reads more of it than the history holds.
// Pure.
#pragma once

#include "absl/status/statusor.h"
#include "coordinator/core/durable.h"
#include "coordinator/core/metrics.h"

namespace muster {

// INVALID_ARGUMENT names the row, the field and the rule.
absl::StatusOr<Ring<StepRecord>::Entry> StepOfRow(const LedgerRow& row);
absl::StatusOr<Ring<JobEvent>::Entry> EventOfRow(const LedgerRow& row);

}  // namespace muster
