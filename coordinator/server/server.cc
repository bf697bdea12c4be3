#include "coordinator/server/server.h"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <atomic>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "common/rpc/address.h"
#include "common/rpc/channel.h"
#include "common/runtime/random_bytes.h"
#include "coordinator/server/access.h"
#include "coordinator/server/agent_stream.h"
#include "coordinator/server/http_pages.h"
#include "coordinator/server/http_server.h"
#include "coordinator/server/job_service.h"
#include "coordinator/server/membership_service.h"
#include "coordinator/server/metrics_text.h"
#include "coordinator/server/port_holder.h"
#include "coordinator/server/prometheus.h"
#include "coordinator/server/rendezvous_service.h"
#include "coordinator/server/timed_journal.h"
#include "coordinator/server/training_service.h"

namespace muster {
namespace {

// Carries the core's actions to the open calls.
class CallSink final : public ActionSink {
 public:
  CallSink(AgentStreams* streams, WaitingCalls* waiting) : streams_(streams), waiting_(waiting) {}
  void Send(StreamId id, const AgentMessage& message) override {
    if (const auto stream = streams_->Find(id)) stream->Send(message);
  }
  void End(StreamId id, const absl::Status& status) override {
    if (const auto stream = streams_->Find(id)) stream->End(status);
  }
  void Answer(const WaitDone& done) override { waiting_->Answer(done); }

 private:
  AgentStreams* const streams_;
  WaitingCalls* const waiting_;
};

absl::StatusOr<HostPort> GrpcAddress(const ServerOptions& options) {
  ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.listen));
  if (IsLoopback(address.host) || !options.token.empty()) return address;
  return absl::FailedPreconditionError(
      absl::StrCat("listen=", options.listen,
                   ": other machines could reach this address, so callers must bring a token: give "
                   "--token-file FILE here, to muster-worker and to muster; or listen on "
                   "127.0.0.1"));
}

absl::StatusOr<HostPort> HttpAddress(const ServerOptions& options) {
  ASSIGN_OR_RETURN(HostPort address, ParseHostPort(options.http));
  if (IsLoopback(address.host) || !options.token.empty()) return address;
  return absl::FailedPreconditionError(
      absl::StrCat("http=", options.http,
                   ": other machines could reach this address, so callers must bring a token: give "
                   "--token-file FILE; or listen on 127.0.0.1"));
}

// Connections that ask for nothing must cost little, and not for ever.
void LimitConnections(grpc::ServerBuilder* builder) {
  builder->AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, 10'000);
  builder->AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, 300'000);  // without a call
  builder->AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, 8 << 10);
  // Half-open connections: agents' silence is noticed sooner, by their heartbeats.
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIME_MS, 60'000);
  builder->AddChannelArgument(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, 20'000);
}

}  // namespace

struct CoordinatorServer::Impl {
  Impl(const ServerOptions& options, Clock* clock)
      : streams(options.limits, clock),
        sink(&streams, &waiting),
        journal(options.journal == nullptr
                    ? nullptr
                    : std::make_unique<TimedJournal>(options.journal, clock)),
        engine(options.engine, clock, &sink, journal.get()),
        gate(options.limits, &engine, clock),
        membership(&gate, &streams,
                   options.coordinator_id.empty() ? RandomBytes(8) : options.coordinator_id),
        rendezvous(&gate, &waiting),
        jobs(&gate),
        traces({.folder = options.trace_folder}),
        training(&gate, &traces) {
    streams.SetEngine(&engine);
    engine.SetHeartbeatSource([this, clock](std::vector<Heartbeat>* heartbeats) {
      last_tick_ns = absl::ToInt64Nanoseconds(clock->Steady());
      streams.Collect(heartbeats);
    });
    // On loopback all who can call are on this machine already, as for gRPC without a token.
    const bool open = options.http.empty() || IsLoopback(ParseHostPort(options.http)->host);
    pages = std::make_unique<HttpPages>(
        HttpPagesOptions{
            .token = open ? Token() : options.token,
            .more_metrics = [this] { return RenderServerMetrics(); },
            .tick_age =
                [this, clock] { return clock->Steady() - absl::Nanoseconds(last_tick_ns.load()); }},
        &engine, clock);
  }

  // Of all that is not in the core.
  std::string RenderServerMetrics();

  AgentStreams streams;
  WaitingCalls waiting;
  CallSink sink;
  const std::unique_ptr<TimedJournal> journal;  // null: none
  std::atomic<int64_t> last_tick_ns = 0;        // steady time; 0: none yet
  std::unique_ptr<HttpPages> pages;             // outlives the engine, whose callbacks reach it
  Engine engine;
  CallGate gate;
  MembershipServiceImpl membership;
  RendezvousServiceImpl rendezvous;
  JobServiceImpl jobs;
  TraceStore traces;
  TrainingServiceImpl training;
  std::unique_ptr<HttpServer> http;
  std::unique_ptr<grpc::Server> grpc;  // goes first: no call is left when the services go
  std::string address, http_address;
  Restored restored;
};

std::string CoordinatorServer::Impl::RenderServerMetrics() {
  std::string text = RenderProcessMetrics();
  const auto add = [&text](const char* name, const char* type, const char* help, double value) {
    PrometheusFamily family(name, type, help);
    family.Add(value);
    text += family.text();
  };
  add("muster_engine_queue_length", "gauge", "Events and reads that wait for the engine.",
      static_cast<double>(engine.QueueLength()));
  add("muster_agent_streams", "gauge", "Open streams of agents.", streams.num_open());
  add("muster_heartbeats_total", "counter", "Heartbeats received.",
      static_cast<double>(streams.num_heartbeats()));
  add("muster_rpc_calls_in_progress", "gauge", "Unary calls that are not answered yet.",
      gate.calls());
  add("muster_rpc_calls_queued", "gauge", "Of these, those that wait for a turn of their client.",
      gate.queued());
  if (journal != nullptr) {
    PrometheusFamily writes("muster_journal_write_duration_seconds", "summary",
                            "Transactions and syncs of the journal.");
    writes.Add({}, absl::ToDoubleSeconds(journal->total()), "_sum");
    writes.Add({}, static_cast<double>(journal->num_writes()), "_count");
    text += writes.text();
    add("muster_journal_write_longest_seconds", "gauge", "Longest one since the start.",
        absl::ToDoubleSeconds(journal->longest()));
    add("muster_journal_write_failures_total", "counter", "Writes that failed.",
        static_cast<double>(journal->num_failures()));
  }
  return text + gate.stats().RenderPrometheus();
}

CoordinatorServer::CoordinatorServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

CoordinatorServer::~CoordinatorServer() { Stop(); }

const std::string& CoordinatorServer::address() const { return impl_->address; }
const std::string& CoordinatorServer::http_address() const { return impl_->http_address; }
const Restored& CoordinatorServer::restored() const { return impl_->restored; }

absl::StatusOr<std::unique_ptr<CoordinatorServer>> CoordinatorServer::Start(
    const ServerOptions& options, Clock* clock) {
  ASSIGN_OR_RETURN(HostPort listen, GrpcAddress(options));
  auto impl = std::make_unique<Impl>(options, clock);
  if (options.journal != nullptr) {
    ASSIGN_OR_RETURN(impl->restored, impl->engine.Restore());
  }
  if (!options.http.empty()) {
    ASSIGN_OR_RETURN(const HostPort http, HttpAddress(options));
    ASSIGN_OR_RETURN(impl->http,
                     HttpServer::Start(http, [pages = impl->pages.get()](const HttpRequest& request,
                                                                         HttpRespond respond) {
                       pages->Handle(request, std::move(respond));
                     }));
    impl->http_address = HostPort{http.host, impl->http->port()}.ToString();
  }
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  grpc::ServerBuilder builder;
  SetServerLimits(&builder);
  LimitConnections(&builder);
  int port = 0;
  builder.AddListeningPort(listen.ToString(),
                           options.token.empty() ? grpc::InsecureServerCredentials()
                                                 : TokenServerCredentials(options.token),
                           &port);
  builder.RegisterService(&impl->membership);
  builder.RegisterService(&impl->rendezvous);
  builder.RegisterService(&impl->jobs);
  builder.RegisterService(&impl->training);
  impl->engine.Start();
  impl->grpc = builder.BuildAndStart();
  if (impl->grpc == nullptr || port == 0) {
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", listen.ToString(), ": ",
                                                 DescribePortHolder(listen.port),
                                                 "; choose another port or stop that process"));
  }
  listen.port = port;
  impl->address = listen.ToString();
  return std::unique_ptr<CoordinatorServer>(new CoordinatorServer(std::move(impl)));
}

absl::Status CoordinatorServer::Inspect(Engine::ReadFn read) {
  return impl_->engine.Read(std::move(read));
}

void CoordinatorServer::Stop() {
  if (impl_->grpc == nullptr) return;
  const absl::Status stopping =
      absl::UnavailableError("the coordinator is stopping; reconnect with back-off");
  if (impl_->http != nullptr) impl_->http->Stop();
  impl_->grpc->GetHealthCheckService()->Shutdown();
  impl_->engine.Stop();  // watches and queued calls are answered
  impl_->waiting.AnswerAll(stopping);
  impl_->streams.EndAll(stopping);
  impl_->grpc->Shutdown(std::chrono::system_clock::now() + std::chrono::milliseconds(500));
  impl_->grpc->Wait();
  impl_->grpc.reset();
}

}  // namespace muster
