#include "coordinator/server/http_server.h"

#include <netdb.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include <cstring>
#include <future>
#include <map>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "coordinator/server/port_holder.h"

namespace muster {
namespace {

constexpr size_t kMaxRequest = 8 << 10;    // bytes
constexpr timeval kPatience{.tv_sec = 1};  // with a silent or slow client, for each read and write

std::string Response(absl::string_view status, absl::string_view body) {
  return absl::StrCat("HTTP/1.1 ", status,
                      "\r\nContent-Type: text/plain; charset=utf-8\r\nConnection: close\r\n"
                      "Content-Length: ",
                      body.size(), "\r\n\r\n", body);
}

std::string Label(absl::string_view text) {
  std::string escaped;
  for (const char c : text) {
    if (c == '"' || c == '\\') escaped += '\\';
    escaped += c == '\n' ? ' ' : c;
  }
  return escaped;
}

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Start(const HostPort& address,
                                                              Engine* engine) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | AI_PASSIVE;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(address.host.c_str(), absl::StrCat(address.port).c_str(), &hints, &found);
  if (error != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("http=", address.ToString(), ": ", gai_strerror(error)));
  }
  const auto free_found = absl::MakeCleanup([&] { freeaddrinfo(found); });
  const int fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return absl::InternalError(absl::StrCat("http socket: ", std::strerror(errno)));
  const int on = 1;  // only against connections of a former life in TIME_WAIT
  setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
  sockaddr_storage bound{};
  socklen_t size = sizeof(bound);
  if (bind(fd, found->ai_addr, found->ai_addrlen) != 0 || listen(fd, 64) != 0 ||
      getsockname(fd, reinterpret_cast<sockaddr*>(&bound), &size) != 0) {
    const std::string why = std::strerror(errno);
    close(fd);
    return absl::AlreadyExistsError(absl::StrCat("cannot listen on ", address.ToString(),
                                                 " (http): ", why, "; ",
                                                 DescribePortHolder(address.port)));
  }
  char port[16];
  getnameinfo(reinterpret_cast<sockaddr*>(&bound), size, nullptr, 0, port, sizeof(port),
              NI_NUMERICSERV);
  return std::unique_ptr<HttpServer>(
      new HttpServer(fd, eventfd(0, EFD_CLOEXEC), std::atoi(port), engine));
}

HttpServer::HttpServer(int listen_fd, int wake_fd, int port, Engine* engine)
    : listen_fd_(listen_fd), wake_fd_(wake_fd), port_(port), engine_(engine) {
  thread_ = std::thread([this] { Run(); });
}

HttpServer::~HttpServer() {
  Stop();
  close(listen_fd_);
  close(wake_fd_);
}

void HttpServer::Stop() {
  if (!thread_.joinable()) return;
  const uint64_t one = 1;
  (void)!write(wake_fd_, &one, sizeof(one));
  thread_.join();
}

void HttpServer::Run() {
  while (true) {
    pollfd fds[] = {{.fd = listen_fd_, .events = POLLIN}, {.fd = wake_fd_, .events = POLLIN}};
    if (poll(fds, 2, -1) < 0 && errno != EINTR) return;
    if (fds[1].revents != 0) return;
    if (fds[0].revents == 0) continue;
    const int connection = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC);
    if (connection < 0) continue;
    Serve(connection);
    close(connection);
  }
}

void HttpServer::Serve(int connection) {
  setsockopt(connection, SOL_SOCKET, SO_RCVTIMEO, &kPatience, sizeof(kPatience));
  setsockopt(connection, SOL_SOCKET, SO_SNDTIMEO, &kPatience, sizeof(kPatience));
  std::string request;
  char buffer[1024];
  while (!absl::StrContains(request, "\r\n\r\n")) {
    const ssize_t size = recv(connection, buffer, sizeof(buffer), 0);
    if (size <= 0 || request.size() > kMaxRequest) return;
    request.append(buffer, size);
  }
  const std::string answer = Answer(request.substr(0, request.find("\r\n")));
  for (size_t sent = 0; sent < answer.size();) {
    const ssize_t size = send(connection, answer.data() + sent, answer.size() - sent, MSG_NOSIGNAL);
    if (size <= 0) return;
    sent += size;
  }
}

std::string HttpServer::Answer(const std::string& request_line) {
  if (!absl::StartsWith(request_line, "GET ")) {
    return Response("405 Method Not Allowed", "only GET is served here\n");
  }
  const std::string path = request_line.substr(4, request_line.find(' ', 4) - 4);
  if (path != "/healthz" && path != "/metrics") {
    return Response("404 Not Found", "here are /healthz and /metrics\n");
  }
  // Both go through the engine: an engine that does not answer is not healthy.
  auto body = std::make_shared<std::promise<std::string>>();
  auto answer = body->get_future();
  const absl::Status posted =
      engine_->Read([body, path](const absl::Status& status, const Coordinator& core, absl::Time) {
        body->set_value(!status.ok() ? "" : path == "/healthz" ? "ok\n" : RenderMetrics(core));
      });
  if (!posted.ok() || answer.wait_for(std::chrono::seconds(1)) != std::future_status::ready) {
    return Response("503 Service Unavailable", "the engine does not answer\n");
  }
  const std::string text = answer.get();
  if (text.empty()) return Response("503 Service Unavailable", "stopping\n");
  return Response("200 OK", text);
}

std::string RenderMetrics(const Coordinator& core) {
  std::string text;
  std::map<std::string, int> agents, jobs;
  for (const AgentState state :
       {AgentState::kJoining, AgentState::kAlive, AgentState::kSuspect, AgentState::kLost}) {
    agents[AgentStateName(state)] = 0;
  }
  for (const auto& [name, worker] : core.membership().workers()) {
    ++agents[AgentStateName(core.membership().AgentOf(name)->state)];
  }
  absl::StrAppend(&text, "# TYPE muster_workers gauge\n");
  for (const auto& [state, count] : agents) {
    absl::StrAppend(&text, "muster_workers{state=\"", state, "\"} ", count, "\n");
  }
  for (const auto& [sequence, job] : core.jobs()) ++jobs[JobStateName(job->state())];
  absl::StrAppend(&text, "# TYPE muster_jobs gauge\n");
  for (const auto& [state, count] : jobs) {
    absl::StrAppend(&text, "muster_jobs{state=\"", state, "\"} ", count, "\n");
  }
  absl::StrAppend(&text, "# TYPE muster_job_iteration gauge\n",
                  "# TYPE muster_job_tokens_per_second gauge\n", "# TYPE muster_job_loss gauge\n");
  for (const auto& [sequence, job] : core.jobs()) {
    if (!IsActive(job->state()) || job->history().steps().empty()) continue;
    const StepMessage& step = job->history().steps().newest().value.step;
    const std::string label =
        absl::StrCat("{job=\"", job->job_id(), "\",name=\"", Label(job->spec().name), "\"} ");
    absl::StrAppend(&text, "muster_job_iteration", label, step.iteration, "\n",
                    "muster_job_tokens_per_second", label, step.tokens_per_s, "\n");
    if (step.lm_loss.has_value()) {
      absl::StrAppend(&text, "muster_job_loss", label, *step.lm_loss, "\n");
    }
  }
  absl::StrAppend(&text, "# TYPE muster_stale_reports_total counter\nmuster_stale_reports_total ",
                  core.num_stale_reports(), "\n");
  return text;
}

}  // namespace muster
