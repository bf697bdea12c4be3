// Status plumbing: every boundary (rpc, file, process, NCCL, JSON) returns absl::Status or
// absl::StatusOr.
#pragma once

#include <utility>
#include "absl/strings/string_view.h"

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace muster {

// The same code with "where: " in front of the message; OK stays OK.
inline absl::Status Annotate(const absl::Status& status, absl::string_view where) {
  if (status.ok()) return status;
  return absl::Status(status.code(), absl::StrCat(where, ": ", status.message()));
}

}  // namespace muster

#define MUSTER_CONCAT_INNER_(a, b) a##b
#define MUSTER_CONCAT_(a, b) MUSTER_CONCAT_INNER_(a, b)

// RETURN_IF_ERROR(DoIt());   returns the status of the enclosing function's call when it is not OK.
#define RETURN_IF_ERROR(expr)                                                              \
  do {                                                                                     \
    if (absl::Status muster_status_ = (expr); !muster_status_.ok()) return muster_status_; \
  } while (false)

// ASSIGN_OR_RETURN(auto x, Compute());
#define ASSIGN_OR_RETURN(lhs, expr) \
  ASSIGN_OR_RETURN_IMPL_(MUSTER_CONCAT_(muster_or_, __LINE__), lhs, expr)
#define ASSIGN_OR_RETURN_IMPL_(tmp, lhs, expr) \
  auto tmp = (expr);                           \
  if (!tmp.ok()) return tmp.status();          \
  lhs = *std::move(tmp)
