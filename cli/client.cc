#include "cli/client.h"

#include <cstdlib>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "cli/output.h"
#include "common/rpc/address.h"

namespace muster {
namespace {

struct NamedAddress {
  std::string origin, address;  // "--coordinator", what it says
};

NamedAddress AddressOf(const Invocation& invocation) {
  if (invocation.Has("--coordinator")) {
    return {"--coordinator", invocation.Get("--coordinator")};
  }
  const char* address = std::getenv("MUSTER_COORDINATOR");
  if (address != nullptr && *address != '\0') return {"MUSTER_COORDINATOR", address};
  return {"", "127.0.0.1:7700"};
}

absl::Status CheckAddress(const NamedAddress& named) {
  if (ParseHostPort(named.address).ok()) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat(named.origin, "=", named.address, ": must be HOST:PORT, like 10.0.0.7:7700"));
}

std::string TokenFileOf(const Invocation& invocation) {
  if (invocation.Has("--token-file")) return invocation.Get("--token-file");
  const char* file = std::getenv("MUSTER_TOKEN_FILE");
  return file != nullptr ? file : "";
}

absl::StatusOr<Token> TokenOf(const std::string& file) {
  if (file.empty()) return Token();
  return ReadTokenFile(file);
}

}  // namespace

OptionSpec CoordinatorOption() {
  return {.name = "--coordinator",
          .value = "HOST:PORT",
          .help = "the coordinator (default: MUSTER_COORDINATOR, else 127.0.0.1:7700)"};
}

OptionSpec TokenFileOption() {
  return {.name = "--token-file",
          .value = "FILE",
          .help =
              "the cluster's secret, in a file of mode 0600 or 0400 (default: "
              "MUSTER_TOKEN_FILE, else none)"};
}

OptionSpec JsonOption() { return {.name = "--json", .help = "print JSON with stable field names"}; }

OptionSpec JsonLinesOption() {
  return {.name = "--json", .help = "print a JSON object a line, with stable field names"};
}

Client::Client(std::string address, std::string token_file, const absl::StatusOr<Token>& token,
               absl::Status setup)
    : address_(std::move(address)),
      token_file_(std::move(token_file)),
      setup_(std::move(setup)),
      channel_(NewChannel(address_, token.value_or(Token()))),
      jobs_(channel_),
      training_(channel_),
      membership_(channel_) {
  setup_.Update(token.status());
}

Client::Client(std::string address) : Client(std::move(address), "", Token(), absl::OkStatus()) {}

Client::Client(const Invocation& invocation)
    : Client(AddressOf(invocation).address, TokenFileOf(invocation),
             TokenOf(TokenFileOf(invocation)), CheckAddress(AddressOf(invocation))) {}

absl::StatusOr<v1::JobStatus> Client::GetJob(const std::string& job_id, int64_t known_version,
                                             absl::Duration wait, std::string* spec_json,
                                             std::string* storage_trouble) {
  v1::GetJobRequest request;
  request.set_job_id(job_id);
  request.set_known_version(known_version);
  *request.mutable_wait() = ToProto(wait);
  auto response = Call(jobs_, &v1::JobService::Stub::GetJob, request, wait);
  if (!response.ok()) return response.status();
  if (spec_json != nullptr) *spec_json = response->spec_json();
  if (storage_trouble != nullptr) *storage_trouble = response->storage_trouble();
  return std::move(*response->mutable_job());
}

absl::StatusOr<v1::GetMetricsResponse> Client::GetMetrics(const std::string& job_id, int64_t since,
                                                          absl::Duration wait) {
  v1::GetMetricsRequest request;
  request.set_job_id(job_id);
  request.set_since(since);
  *request.mutable_wait() = ToProto(wait);
  return Call(training_, &v1::TrainingService::Stub::GetMetrics, request, wait);
}

absl::StatusOr<v1::GetEventsResponse> Client::GetEvents(const std::string& job_id, int64_t since,
                                                        absl::Duration wait) {
  v1::GetEventsRequest request;
  request.set_job_id(job_id);
  request.set_since(since);
  *request.mutable_wait() = ToProto(wait);
  return Call(training_, &v1::TrainingService::Stub::GetEvents, request, wait);
}

absl::StatusOr<v1::ReadLogsResponse> Client::ReadLogs(const std::string& job_id,
                                                      std::optional<int> rank, int64_t since,
                                                      absl::Duration wait) {
  v1::ReadLogsRequest request;
  request.set_job_id(job_id);
  if (rank) request.set_rank(*rank);
  request.set_since(since);
  *request.mutable_wait() = ToProto(wait);
  return Call(jobs_, &v1::JobService::Stub::ReadLogs, request, wait);
}

absl::StatusOr<v1::SubmitJobResponse> Client::SubmitJob(const std::string& spec_json) {
  v1::SubmitJobRequest request;
  request.set_spec_json(spec_json);
  return Call(jobs_, &v1::JobService::Stub::SubmitJob, request);
}

absl::StatusOr<v1::JobStatus> Client::CancelJob(const std::string& job_id, v1::CancelMode mode,
                                                const std::string& reason) {
  v1::CancelJobRequest request;
  request.set_job_id(job_id);
  request.set_mode(mode);
  request.set_reason(reason);
  auto response = Call(jobs_, &v1::JobService::Stub::CancelJob, request);
  if (!response.ok()) return response.status();
  return std::move(*response->mutable_job());
}

absl::StatusOr<v1::ListJobsResponse> Client::ListJobs() {
  return Call(jobs_, &v1::JobService::Stub::ListJobs, v1::ListJobsRequest());
}

absl::StatusOr<v1::GetTopologyResponse> Client::GetTopology(const std::string& job_id) {
  v1::GetTopologyRequest request;
  request.set_job_id(job_id);
  return Call(jobs_, &v1::JobService::Stub::GetTopology, request);
}

absl::StatusOr<int64_t> Client::RequestCheckpoint(const std::string& job_id,
                                                  const std::string& reason) {
  v1::RequestCheckpointRequest request;
  request.set_job_id(job_id);
  request.set_reason(reason);
  auto response = Call(training_, &v1::TrainingService::Stub::RequestCheckpoint, request);
  if (!response.ok()) return response.status();
  return response->directive();
}

absl::StatusOr<int64_t> Client::RequestEvaluation(const std::string& job_id,
                                                  const std::string& reason) {
  v1::RequestEvaluationRequest request;
  request.set_job_id(job_id);
  request.set_reason(reason);
  auto response = Call(training_, &v1::TrainingService::Stub::RequestEvaluation, request);
  if (!response.ok()) return response.status();
  return response->directive();
}

absl::StatusOr<int64_t> Client::RequestTrace(const std::string& job_id, const std::string& reason,
                                             int64_t iterations) {
  v1::RequestTraceRequest request;
  request.set_job_id(job_id);
  request.set_reason(reason);
  request.set_iterations(iterations);
  auto response = Call(training_, &v1::TrainingService::Stub::RequestTrace, request);
  if (!response.ok()) return response.status();
  return response->directive();
}

absl::StatusOr<v1::GetTraceResponse> Client::GetTrace(const std::string& job_id,
                                                      int64_t directive) {
  v1::GetTraceRequest request;
  request.set_job_id(job_id);
  request.set_directive(directive);
  return Call(training_, &v1::TrainingService::Stub::GetTrace, request);
}

absl::StatusOr<v1::ReadTraceResponse> Client::ReadTrace(const std::string& job_id,
                                                        int64_t directive, int rank,
                                                        int64_t offset) {
  v1::ReadTraceRequest request;
  request.set_job_id(job_id);
  request.set_directive(directive);
  request.set_rank(rank);
  request.set_offset(offset);
  return Call(training_, &v1::TrainingService::Stub::ReadTrace, request);
}

absl::StatusOr<v1::ListWorkersResponse> Client::ListWorkers() {
  return Call(membership_, &v1::MembershipService::Stub::ListWorkers, v1::ListWorkersRequest());
}

absl::StatusOr<std::vector<v1::WorkerStatus>> Client::DrainWorker(const std::string& name,
                                                                  bool undo) {
  v1::DrainWorkerRequest request;
  request.set_worker(name);
  request.set_undo(undo);
  const auto response = Call(membership_, &v1::MembershipService::Stub::DrainWorker, request);
  if (!response.ok()) return response.status();
  std::vector<v1::WorkerStatus> workers(response->workers().begin(), response->workers().end());
  // An older coordinator knows single workers only.
  if (workers.empty() && response->has_worker()) workers.push_back(response->worker());
  return workers;
}

absl::StatusOr<std::vector<v1::WorkerStatus>> Client::CordonWorker(const std::string& name,
                                                                   bool undo) {
  v1::CordonWorkerRequest request;
  request.set_worker(name);
  request.set_undo(undo);
  const auto response = Call(membership_, &v1::MembershipService::Stub::CordonWorker, request);
  if (!response.ok()) return response.status();
  return std::vector<v1::WorkerStatus>(response->workers().begin(), response->workers().end());
}

absl::StatusOr<v1::ReplaceRankResponse> Client::ReplaceRank(const std::string& job_id, int rank,
                                                            const std::string& worker,
                                                            const std::string& reason) {
  v1::ReplaceRankRequest request;
  request.set_job_id(job_id);
  request.set_rank(rank);
  request.set_worker(worker);
  request.set_reason(reason);
  return Call(jobs_, &v1::JobService::Stub::ReplaceRank, request);
}

int ReportCallError(const absl::Status& status, const Client& client) {
  switch (status.code()) {
    case absl::StatusCode::kUnavailable:
      if (client.connected()) {
        PrintError(absl::StrCat("the coordinator at ", client.address(),
                                " cannot do it now: ", status.message(), "; try again later"));
        return kExitJobFailed;
      }
      PrintError(absl::StrCat("no coordinator answers at ", client.address(),
                              ": start muster-coordinator there, or name its address with "
                              "--coordinator or MUSTER_COORDINATOR (",
                              status.message(), ")"));
      return kExitNoCoordinator;
    case absl::StatusCode::kDeadlineExceeded:
      PrintError(absl::StrCat("no coordinator answers in time at ", client.address(),
                              ": see whether muster-coordinator is well there and nothing in "
                              "between drops the packets, or name another address with "
                              "--coordinator or MUSTER_COORDINATOR (",
                              status.message(), ")"));
      return kExitNoCoordinator;
    case absl::StatusCode::kUnauthenticated:
      PrintError(absl::StrCat(DescribeRefusal(client.address(), client.token_file()),
                              client.token_file().empty() ? " (or set MUSTER_TOKEN_FILE)" : ""));
      return kExitUsage;
    case absl::StatusCode::kPermissionDenied:
      PrintError(absl::StrCat("the coordinator at ", client.address(),
                              " does not allow that: ", status.message()));
      return kExitUsage;
    case absl::StatusCode::kNotFound: {
      const absl::string_view text = status.message();
      const char* advice = absl::StartsWith(text, "job ")      ? "; muster list shows the jobs"
                           : absl::StartsWith(text, "worker ") ? "; muster workers shows them"
                                                               : "";
      PrintError(absl::StrCat(text, advice));
      return kExitUsage;
    }
    case absl::StatusCode::kInvalidArgument:
      PrintError(
          absl::StrCat(status.message(),
                       absl::StrContains(status.message(), "Permission denied")
                           ? "; run this as the file's owner, or name another with --token-file"
                           : ""));
      return kExitUsage;
    case absl::StatusCode::kUnimplemented:
      PrintError(absl::StrCat("the coordinator at ", client.address(),
                              " does not know this call: it is of another version (",
                              status.message(), ")"));
      return kExitJobFailed;
    default:
      PrintError(status.message());
      return kExitJobFailed;
  }
}

}  // namespace muster
