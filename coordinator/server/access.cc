#include "coordinator/server/access.h"

#include <grpc/grpc.h>
#include <grpc/grpc_security.h>

#include <algorithm>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"

namespace muster {
namespace {

constexpr RpcAccess kTable[] = {
    {.path = "/muster.v1.MembershipService/Register", .agent = true},
    {.path = "/muster.v1.MembershipService/Connect", .agent = true},
    {.path = "/muster.v1.MembershipService/DrainWorker", .user = true},
    {.path = "/muster.v1.MembershipService/CordonWorker", .user = true},
    {.path = "/muster.v1.JobService/ReplaceRank", .user = true},
    {.path = "/muster.v1.MembershipService/ListWorkers", .user = true},
    {.path = "/muster.v1.RendezvousService/SetKey", .agent = true},
    {.path = "/muster.v1.RendezvousService/WaitPrefix", .agent = true},
    {.path = "/muster.v1.JobService/SubmitJob", .user = true},
    {.path = "/muster.v1.JobService/CancelJob", .user = true},
    {.path = "/muster.v1.JobService/ListJobs", .user = true},
    {.path = "/muster.v1.JobService/GetJob", .user = true},
    {.path = "/muster.v1.JobService/GetTopology", .user = true},
    {.path = "/muster.v1.JobService/ReadLogs", .user = true},
    {.path = "/muster.v1.TrainingService/RequestCheckpoint", .user = true},
    {.path = "/muster.v1.TrainingService/RequestEvaluation", .user = true},
    {.path = "/muster.v1.TrainingService/RequestTrace", .user = true},
    {.path = "/muster.v1.TrainingService/GetTrace", .user = true},
    {.path = "/muster.v1.TrainingService/ReadTrace", .user = true},
    {.path = "/muster.v1.TrainingService/UploadTrace", .agent = true},
    {.path = "/muster.v1.TrainingService/GetMetrics", .user = true},
    {.path = "/muster.v1.TrainingService/GetEvents", .user = true},
    {.path = "/grpc.health.v1.Health/Check", .agent = true, .user = true},
    {.path = "/grpc.health.v1.Health/Watch", .agent = true, .user = true},
    {.path = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", .user = true},
};

absl::string_view TextOf(const grpc_slice& slice) {
  return {reinterpret_cast<const char*>(GRPC_SLICE_START_PTR(slice)), GRPC_SLICE_LENGTH(slice)};
}

// The C core's hook: runs before a call is matched to a service, whatever the service.
void ProcessMetadata(void* state, grpc_auth_context*, const grpc_metadata* metadata, size_t count,
                     grpc_process_auth_metadata_done_cb done, void* user_data) {
  const Token& token = *static_cast<const Token*>(state);
  absl::string_view path;
  const grpc_metadata* authorization = nullptr;
  for (size_t i = 0; i < count; ++i) {
    const absl::string_view key = TextOf(metadata[i].key);
    if (key == ":path") path = TextOf(metadata[i].value);
    if (key == kAuthorizationKey) authorization = &metadata[i];
  }
  std::optional<absl::string_view> value;
  if (authorization != nullptr) value = TextOf(authorization->value);
  const absl::Status status = CheckAccess(token, path, value ? &*value : nullptr);
  const std::string message(status.message());
  done(user_data, authorization, status.ok() && authorization != nullptr ? 1 : 0, nullptr, 0,
       static_cast<grpc_status_code>(status.code()), status.ok() ? nullptr : message.c_str());
}

void DestroyToken(void* state) { delete static_cast<Token*>(state); }

// gRPC's own class for a port without encryption takes no processor; the C core's credentials
// behind it do.
class TokenCredentials final : public grpc::ServerCredentials {
 public:
  explicit TokenCredentials(const Token& token)
      : credentials_(grpc_insecure_server_credentials_create()) {
    grpc_server_credentials_set_auth_metadata_processor(
        credentials_,
        {.process = ProcessMetadata, .destroy = DestroyToken, .state = new Token(token)});
  }
  ~TokenCredentials() override { grpc_server_credentials_release(credentials_); }

  // The processor is this class's purpose: another one would be in its place.
  void SetAuthMetadataProcessor(const std::shared_ptr<grpc::AuthMetadataProcessor>&) override {}

 private:
  int AddPortToServer(const std::string& address, grpc_server* server) override {
    return grpc_server_add_http2_port(server, address.c_str(), credentials_);
  }

  grpc_server_credentials* const credentials_;
};

}  // namespace

absl::Span<const RpcAccess> AccessTable() { return kTable; }

absl::Status CheckAccess(const Token& token, absl::string_view path,
                         const absl::string_view* authorization) {
  if (authorization == nullptr) {
    return absl::UnauthenticatedError(
        "this coordinator needs a token, and the call brings none: give --token-file FILE");
  }
  if (!token.Matches(*authorization)) {
    return absl::UnauthenticatedError(
        "the token of this call is not the coordinator's: give the --token-file that "
        "muster-coordinator was started with");
  }
  const bool known = std::any_of(std::begin(kTable), std::end(kTable),
                                 [&](const RpcAccess& rpc) { return rpc.path == path; });
  if (!known) return absl::UnimplementedError(absl::StrCat("this coordinator has no RPC ", path));
  return absl::OkStatus();
}

std::shared_ptr<grpc::ServerCredentials> TokenServerCredentials(const Token& token) {
  return std::make_shared<TokenCredentials>(token);
}

}  // namespace muster
