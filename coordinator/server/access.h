// Who may call what. The table is data: every RPC of the server with the roles that it belongs to;
// one check in front of all services applies it (health checking and reflection too), so that no
// handler sees a call that is refused. Thread-safe: functions of values.
//
// Today both roles hold the same token, so the table tells which RPCs exist; credentials of a role
// of their own will be told apart here.
#pragma once

#include <grpcpp/security/server_credentials.h>

#include <memory>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "common/rpc/token.h"

namespace muster {

struct RpcAccess {
  absl::string_view path;  // "/muster.v1.JobService/SubmitJob"
  bool agent = false;      // muster-worker
  bool user = false;       // the command line, probes
};

absl::Span<const RpcAccess> AccessTable();

// OK when a call of `path` with the metadata `authorization` (null: it has none) may go on.
// UNAUTHENTICATED: no token or another; UNIMPLEMENTED: an RPC that is not in the table.
// Precondition: `token` is not empty.
absl::Status CheckAccess(const Token& token, absl::string_view path,
                         const absl::string_view* authorization);

// Credentials of a port without encryption, whose every call goes through CheckAccess first. The
// token is taken out of the metadata, so that nothing behind can log it.
std::shared_ptr<grpc::ServerCredentials> TokenServerCredentials(const Token& token);

}  // namespace muster
