// The CLI's calls to the coordinator. One process, one coordinator; not thread-safe.
#pragma once

#include <grpcpp/client_context.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "cli/command.h"
#include "common/rpc/channel.h"
#include "common/rpc/convert.h"
#include "common/rpc/token.h"
#include "muster/v1/job.grpc.pb.h"
#include "muster/v1/membership.grpc.pb.h"
#include "muster/v1/training.grpc.pb.h"

namespace muster {

// --coordinator, the option of every command that calls.
OptionSpec CoordinatorOption();
// --token-file, beside it.
OptionSpec TokenFileOption();
OptionSpec JsonOption();
OptionSpec JsonLinesOption();  // of what may be long, or goes on

class Client {
 public:
  explicit Client(std::string address);  // without a token
  // --coordinator, else MUSTER_COORDINATOR, else 127.0.0.1:7700; --token-file, else
  // MUSTER_TOKEN_FILE, else none. Of an address or a token file that is no good every call tells.
  explicit Client(const Invocation& invocation);

  const std::string& address() const { return address_; }
  const std::string& token_file() const { return token_file_; }  // empty: none

  // Whether somebody was there when the last call ended, so that its error is an answer.
  bool connected() const { return connected_; }

  // From now on a call is given up after 2 s (and the wait that it asks for): for loops that ask
  // again, so that they notice soon when the coordinator is away, and soon when it is back.
  void ExpectQuickAnswers() { asks_again_ = true; }

  absl::StatusOr<v1::JobStatus> GetJob(const std::string& job_id, int64_t known_version = 0,
                                       absl::Duration wait = absl::ZeroDuration(),
                                       std::string* spec_json = nullptr,
                                       std::string* storage_trouble = nullptr);
  absl::StatusOr<v1::GetMetricsResponse> GetMetrics(const std::string& job_id, int64_t since,
                                                    absl::Duration wait);
  absl::StatusOr<v1::GetEventsResponse> GetEvents(const std::string& job_id, int64_t since,
                                                  absl::Duration wait);
  absl::StatusOr<v1::ReadLogsResponse> ReadLogs(const std::string& job_id, std::optional<int> rank,
                                                int64_t since, absl::Duration wait);
  absl::StatusOr<v1::SubmitJobResponse> SubmitJob(const std::string& spec_json);
  absl::StatusOr<v1::JobStatus> CancelJob(const std::string& job_id, v1::CancelMode mode,
                                          const std::string& reason);
  absl::StatusOr<v1::ListJobsResponse> ListJobs();
  absl::StatusOr<v1::GetTopologyResponse> GetTopology(const std::string& job_id);
  // The number of the directive.
  absl::StatusOr<int64_t> RequestCheckpoint(const std::string& job_id, const std::string& reason);
  absl::StatusOr<int64_t> RequestEvaluation(const std::string& job_id, const std::string& reason);
  absl::StatusOr<int64_t> RequestTrace(const std::string& job_id, const std::string& reason,
                                       int64_t iterations);
  absl::StatusOr<v1::GetTraceResponse> GetTrace(const std::string& job_id, int64_t directive);
  absl::StatusOr<v1::ReadTraceResponse> ReadTrace(const std::string& job_id, int64_t directive,
                                                  int rank, int64_t offset);
  absl::StatusOr<v1::ListWorkersResponse> ListWorkers();
  // All workers that were meant: `name` may be a node.
  absl::StatusOr<std::vector<v1::WorkerStatus>> DrainWorker(const std::string& name, bool undo);
  absl::StatusOr<std::vector<v1::WorkerStatus>> CordonWorker(const std::string& name, bool undo);
  absl::StatusOr<v1::ReplaceRankResponse> ReplaceRank(const std::string& job_id, int rank,
                                                      const std::string& worker,
                                                      const std::string& reason);

 private:
  Client(std::string address, std::string token_file, const absl::StatusOr<Token>& token,
         absl::Status setup);

  absl::Duration AnswerLimit() const {
    if (!asks_again_) return kDefaultRpcDeadline;
    return away_ ? absl::Milliseconds(500) : absl::Seconds(2);  // short: for ctrl-C
  }

  template <typename Stub, typename Request, typename Response>
  absl::StatusOr<Response> Call(
      Stub& stub, grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&, Response*),
      const Request& request, absl::Duration wait = absl::ZeroDuration()) {
    if (!setup_.ok()) return setup_;
    grpc::ClientContext context;
    SetDeadline(&context, AnswerLimit() + wait);
    // A call that fails at once lets nobody look after the connection that is being made: its
    // failure would be noticed, and the next one tried, by a timer only, every two seconds.
    context.set_wait_for_ready(asks_again_ && away_);
    Response response;
    const absl::Status status = FromGrpc((stub.*method)(&context, request, &response));
    away_ = status.code() == absl::StatusCode::kUnavailable ||
            status.code() == absl::StatusCode::kDeadlineExceeded;
    connected_ = channel_->GetState(/*try_to_connect=*/false) == GRPC_CHANNEL_READY;
    if (!status.ok()) return status;
    return response;
  }

  const std::string address_, token_file_;
  absl::Status setup_;  // an address or a token file that is no good: every call tells
  const std::shared_ptr<grpc::Channel> channel_;
  v1::JobService::Stub jobs_;
  v1::TrainingService::Stub training_;
  v1::MembershipService::Stub membership_;
  bool connected_ = false, asks_again_ = false;
  bool away_ = false;  // the last call was not answered
};

// Prints one clear line (what is wrong, and what to do) and says what to exit with: 3 when the
// coordinator can't be reached, 2 when the request names something that is not there or lacks the
// token, else 1.
int ReportCallError(const absl::Status& status, const Client& client);

}  // namespace muster
