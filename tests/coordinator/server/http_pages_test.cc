// What the HTTP port shows, on a whole coordinator.
#include "coordinator/server/http_pages.h"

#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <limits>

#include "absl/strings/str_cat.h"
#include "common/rpc/address.h"
#include "common/rpc/channel.h"
#include "coordinator/server/server.h"
#include "coordinator/server/status_page.h"
#include "coordinator/server/status_view.h"
#include "muster/v1/job.grpc.pb.h"
#include "nlohmann/json.hpp"
#include "tests/coordinator/core/core_cluster.h"
#include "tests/coordinator/core/test_spec.h"
#include "tests/coordinator/server/fake_agent.h"
#include "tests/coordinator/server/http_client.h"

namespace muster {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;

const char kToken[] = "right-token-0123456789";
const char kHostile[] = "<script>alert('x')</script>\"&\\ \x01";

class HttpPagesTest : public testing::Test {
 protected:
  void Start(const std::string& http, absl::string_view token = "") {
    ServerOptions options{.listen = "127.0.0.1:0", .http = http};
    if (!token.empty()) options.token = *Token::FromText(token);
    options.engine.core.membership.heartbeat_interval = absl::Minutes(2);
    options.engine.core.membership.heartbeat_timeout = absl::Minutes(5);
    auto server = CoordinatorServer::Start(options, &clock_);
    ASSERT_TRUE(server.ok()) << server.status();
    server_ = *std::move(server);
    port_ = ParseHostPort(server_->http_address())->port;
  }
  std::string Submit(const std::string& name) {
    const auto jobs = v1::JobService::NewStub(NewChannel(server_->address()));
    grpc::ClientContext context;
    SetDeadline(&context, absl::Seconds(60));
    nlohmann::json spec = nlohmann::json::parse(TestSpec());
    spec["name"] = name;
    v1::SubmitJobRequest request;
    request.set_spec_json(spec.dump());
    v1::SubmitJobResponse response;
    EXPECT_TRUE(jobs->SubmitJob(&context, request, &response).ok());
    EXPECT_EQ(response.problems_size(), 0) << response.ShortDebugString();
    return response.job_id();
  }
  // An agent with a job that has made three steps; the page that shows it.
  std::string PageOfARunningJob(const std::string& path, const std::string& name) {
    FakeAgent agent(server_->address(), "node-1", 2);
    agent.Join();
    Submit(name);
    const v1::ConnectResponse response = agent.Next();
    for (int i = 1; i <= 3; ++i) {
      agent.Report(response.launch(), [&](auto* r) {
        r->mutable_step()->set_iteration(i);
        r->mutable_step()->set_lm_loss(4.0 / i);
        r->mutable_step()->set_grad_norm(0.5 * i);
        r->mutable_step()->set_num_zeros(i);
        r->mutable_step()->set_params_norm(2.5 * i);
        r->mutable_step()->set_load_balancing_loss(1.25);
        r->mutable_step()->set_z_loss(0.5 * i);
        r->mutable_step()->set_tokens_per_s(1000);
        r->mutable_step()->set_elapsed_ms(20);
      });
    }
    // Behind the steps, so that its answer says that they were taken.
    agent.Report(response.launch(), [](auto* r) { r->mutable_unique_id()->set_id("c0ffee"); });
    EXPECT_TRUE(agent.Next().has_unique_id());
    return GetHttp(port_, path);
  }

  RealClock clock_;
  std::unique_ptr<CoordinatorServer> server_;
  int port_ = 0;
};

TEST_F(HttpPagesTest, HealthSaysThatTheEngineTicksAndTheJournalIsWritable) {
  Start("127.0.0.1:0");
  EXPECT_THAT(GetHttp(port_, "/healthz"),
              AllOf(StartsWith("HTTP/1.1 200 OK"), HasSubstr("\r\n\r\nok\nengine: last tick "),
                    HasSubstr("journal: writable")));
}

TEST_F(HttpPagesTest, OtherPathsAreNotThere) {
  Start("127.0.0.1:0");
  EXPECT_THAT(GetHttp(port_, "/etc/passwd"), StartsWith("HTTP/1.1 404"));
  EXPECT_THAT(GetHttp(port_, "/status/../metrics"), StartsWith("HTTP/1.1 404"));
}

TEST_F(HttpPagesTest, OffLoopbackEverythingButHealthNeedsTheToken) {
  Start("0.0.0.0:0", kToken);
  for (const char* path : {"/", "/status", "/metrics", "/nowhere"}) {
    SCOPED_TRACE(path);
    EXPECT_THAT(GetHttp(port_, path),
                AllOf(StartsWith("HTTP/1.1 401"), HasSubstr("WWW-Authenticate: Bearer\r\n")));
    EXPECT_THAT(GetHttp(port_, path, "Authorization: Bearer wrong-token-0123456789\r\n"),
                StartsWith("HTTP/1.1 401"));
  }
  const std::string right = absl::StrCat("Authorization: Bearer ", kToken, "\r\n");
  EXPECT_THAT(GetHttp(port_, "/metrics", right), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(GetHttp(port_, "/status", right), StartsWith("HTTP/1.1 200"));
  EXPECT_THAT(GetHttp(port_, "/healthz"), StartsWith("HTTP/1.1 200"));
}

TEST_F(HttpPagesTest, OnLoopbackNoTokenIsNeeded) {
  Start("127.0.0.1:0", kToken);
  EXPECT_THAT(GetHttp(port_, "/metrics"), StartsWith("HTTP/1.1 200"));
}

// With MUSTER_WRITE_METRICS=FILE the text is left there: CI has promtool look at it.
TEST_F(HttpPagesTest, MetricsShowARunningJobAndTheServerItself) {
  Start("127.0.0.1:0");
  const std::string page = PageOfARunningJob("/metrics", "tiny \"gpt\"\\");
  for (const char* line :
       {"muster_workers{state=\"alive\"} 2\n",
        "# TYPE muster_workers gauge\n",
        "# HELP muster_workers ",
        "muster_workers_busy 2\n",
        "muster_job_iteration{job=\"job-1\"} 3\n",
        "muster_job_grad_norm{job=\"job-1\"} 1.5\n",
        "muster_job_num_zeros{job=\"job-1\"} 3\n",
        "muster_job_params_norm{job=\"job-1\"} 7.5\n",
        "muster_job_side_loss{job=\"job-1\",loss=\"load_balancing_loss\"} 1.25\n"
        "muster_job_side_loss{job=\"job-1\",loss=\"z_loss\"} 1.5\n",
        "muster_job_tokens_per_second{job=\"job-1\"} 1000\n",
        "muster_job_step_duration_seconds{job=\"job-1\"} 0.02",
        "name=\"tiny \\\"gpt\\\"\\\\\"",
        "muster_job_restarts_total{job=\"job-1\"} 0\n",
        "muster_storage_writable 1\n",
        "muster_engine_queue_length ",
        "muster_agent_streams 1\n",
        "# TYPE muster_heartbeats_total counter\n",
        "muster_rpc_requests_total{service=\"muster.v1.JobService\",method=\"SubmitJob\",code="
        "\"OK\"} 1\n",
        "muster_rpc_duration_seconds_bucket{service=\"muster.v1.JobService\",method=\"SubmitJob\","
        "le=\"+Inf\"} 1\n",
        "process_cpu_seconds_total ",
        "process_resident_memory_bytes "}) {
    EXPECT_THAT(page, HasSubstr(line));
  }
  if (const char* path = std::getenv("MUSTER_WRITE_METRICS")) {
    std::ofstream(path) << page.substr(page.find("\r\n\r\n") + 4);
  }
}

TEST_F(HttpPagesTest, StatusShowsARunningJobWithItsPlotAndNoScript) {
  Start("127.0.0.1:0");
  const std::string page = PageOfARunningJob("/status", "<script>alert(1)\"&");
  EXPECT_THAT(
      page, AllOf(StartsWith("HTTP/1.1 200"), HasSubstr("Content-Security-Policy: default-src"),
                  HasSubstr(">job-1</h3>"), HasSubstr("3 of 10"), HasSubstr("<svg class=\"plot\""),
                  HasSubstr("&lt;script&gt;"), Not(HasSubstr("<script"))));
  EXPECT_THAT(page, Not(testing::ContainsRegex("(src|href)=")));  // no outside assets
}

// ---- pure parts

JobView HostileJob() {
  JobView job;
  job.state = "RUNNING";
  job.status.set_job_id(kHostile);
  job.status.set_name(kHostile);
  job.status.set_reason(kHostile);
  job.status.mutable_cause()->set_text(kHostile);
  job.status.mutable_cause()->set_rank(1);
  job.status.mutable_cause()->set_worker(kHostile);
  job.status.mutable_wait()->set_phase(kHostile);
  job.status.mutable_wait()->set_missing(kHostile);
  job.status.mutable_last()->mutable_step()->set_loss_text(kHostile);
  job.status.add_phase_limits()->set_phase(kHostile);
  job.status.add_evaluations()->set_split(kHostile);
  job.status.set_train_iters(10);
  job.phases.push_back(
      {.phase = kHostile, .ranks = "0-3", .num_ranks = 4, .nodes = {kHostile}, .num_nodes = 20});
  job.losses = {{1, 2.0}, {2, 1.0}};
  job.events = {kHostile};
  return job;
}

TEST(StatusPageTest, NoTextFromElsewhereBecomesMarkup) {
  StatusView view{.now = absl::FromUnixSeconds(1'700'000'000), .storage_trouble = kHostile};
  view.active = {HostileJob()};
  view.waiting = {HostileJob()};
  view.ended = {HostileJob()};
  view.ended_left_out = 7;
  view.nodes.push_back(
      {.condition = kHostile, .nodes = {kHostile}, .num_nodes = 1, .trouble = true});
  const std::string page = RenderStatusPage(view);
  EXPECT_THAT(page,
              AllOf(Not(HasSubstr("<script")), Not(HasSubstr("alert('x')")), Not(HasSubstr("\x01")),
                    HasSubstr("and 19 more"), HasSubstr("and 7 more")));
  // Every element that is opened and has an end is ended: the escaping lost no quote.
  for (const char* element :
       {"section", "div", "details", "table", "svg", "pre", "h2", "h3", "p"}) {
    const auto count = [&](const std::string& what) {
      int found = 0;
      for (size_t at = page.find(what); at != std::string::npos; at = page.find(what, at + 1))
        ++found;
      return found;
    };
    const std::string name(element);
    EXPECT_EQ(count("<" + name + ">") + count("<" + name + " "), count("</" + name + ">")) << name;
  }
}

TEST(StatusPageTest, StaysReadableAt4096Ranks) {
  CoreCluster cluster;
  for (int node = 1; node <= 512; ++node) cluster.Join(node, 8);
  const std::string job = cluster.Submit({.world_size = 4096});
  for (int rank = 0; rank < 24; ++rank) {
    cluster.Report(job, rank, PhaseMessage{.phase = rank == 7 ? "forming" : "loading"});
  }
  const StatusView view = StatusViewOf(cluster.core(), absl::UnixEpoch());
  ASSERT_EQ(view.active.size(), 1u);
  ASSERT_EQ(view.active[0].phases.size(), 3u);  // most ranks first
  EXPECT_EQ(view.active[0].phases[0].num_ranks, 4072);
  EXPECT_EQ(view.active[0].phases[1].ranks, "0-6,8-23");
  EXPECT_EQ(view.active[0].phases[2].ranks, "7");
  EXPECT_EQ(view.num_workers, 4096);
  ASSERT_EQ(view.nodes.size(), 1u);  // all in one condition
  EXPECT_EQ(view.nodes[0].num_nodes, 512);
  EXPECT_LT(RenderStatusPage(view).size(), 20'000u);
}

TEST(StatusPageTest, AnEmptyClusterHasAPage) {
  const std::string page = RenderStatusPage({.now = absl::UnixEpoch()});
  EXPECT_THAT(page,
              AllOf(HasSubstr("No job runs or waits."), HasSubstr("1970-01-01 00:00:00 UTC")));
}

TEST(SvgLinePlotTest, ValuesThatAreNotFiniteLeaveGaps) {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(SvgLinePlot({}, "t"), "");
  EXPECT_EQ(SvgLinePlot({{1, 2}, {2, nan}}, "t"), "");
  const std::string plot = SvgLinePlot({{1, 4}, {2, 2}, {3, nan}, {4, 2}, {5, 2}}, "<t>");
  EXPECT_THAT(plot, AllOf(Not(HasSubstr("nan")), HasSubstr("&lt;t&gt;"), HasSubstr(">4<"),
                          testing::ContainsRegex("d=\"M[0-9. ]+L[0-9. ]+M[0-9. ]+L[0-9. ]+\"")));
  // A constant is a line, not a division by zero.
  EXPECT_THAT(SvgLinePlot({{1, 3}, {1, 3}}, "t"), Not(HasSubstr("nan")));
}

TEST(HtmlEscapedTest, NothingEscapes) {
  EXPECT_EQ(HtmlEscaped("a<b>&\"'\x02\xff\n"), "a&lt;b&gt;&amp;&quot;&#39; \xef\xbf\xbd\n");
}

}  // namespace
}  // namespace muster
