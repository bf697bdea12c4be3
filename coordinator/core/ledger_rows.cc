#include "coordinator/core/ledger_rows.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/core/job_fields.h"

namespace muster {
namespace {

template <typename T>
absl::StatusOr<typename Ring<T>::Entry> Read(const LedgerRow& row) {
  T value;
  JsonReader reader(absl::StrCat("ledger of job ", row.job, ", kind ", static_cast<int>(row.kind),
                                 ", index ", row.index),
                    row.value);
  VisitLedger(reader, value);
  RETURN_IF_ERROR(reader.status());
  return typename Ring<T>::Entry{row.index, std::move(value)};
}

}  // namespace

absl::StatusOr<Ring<StepRecord>::Entry> StepOfRow(const LedgerRow& row) {
  ASSIGN_OR_RETURN(auto entry, Read<StepRecord>(row));
  entry.value.step.epoch = entry.value.epoch;
  return entry;
}

absl::StatusOr<Ring<JobEvent>::Entry> EventOfRow(const LedgerRow& row) {
  return Read<JobEvent>(row);
}

}  // namespace muster
