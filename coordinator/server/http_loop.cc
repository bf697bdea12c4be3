#include "coordinator/server/http_loop.h"

#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/runtime/clock.h"

namespace muster {
namespace {

absl::Duration SteadyNow() { return RealClock().Steady(); }

const char* ReasonPhrase(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 302:
      return "Found";
    case 400:
      return "Bad Request";
    case 401:
      return "Unauthorized";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 431:
      return "Request Header Fields Too Large";
    case 503:
      return "Service Unavailable";
    default:
      return "Status";
  }
}

struct ParsedRequest {
  std::string method;
  HttpRequest request;
};

// `header`: up to and without the empty line. nullopt: not a request of HTTP/1.
std::optional<ParsedRequest> Parse(absl::string_view header) {
  const std::vector<absl::string_view> lines = absl::StrSplit(header, "\r\n");
  const std::vector<absl::string_view> parts = absl::StrSplit(lines[0], ' ');
  if (parts.size() != 3 || !absl::StartsWith(parts[2], "HTTP/1.") ||
      !absl::StartsWith(parts[1], "/")) {
    return std::nullopt;
  }
  ParsedRequest parsed{.method = std::string(parts[0]),
                       .request = {.path = std::string(parts[1].substr(0, parts[1].find('?'))),
                                   .authorization = ""}};
  for (size_t i = 1; i < lines.size(); ++i) {
    const size_t colon = lines[i].find(':');
    if (colon == absl::string_view::npos) return std::nullopt;
    if (!absl::EqualsIgnoreCase(lines[i].substr(0, colon), "authorization")) continue;
    parsed.request.authorization =
        std::string(absl::StripAsciiWhitespace(lines[i].substr(colon + 1)));
  }
  return parsed;
}

}  // namespace

void HttpLoop::Mailbox::Wake() {
  const uint64_t one = 1;
  if (wake_fd >= 0) (void)!write(wake_fd, &one, sizeof(one));
}

HttpLoop::HttpLoop(int listen_fd, HttpHandler handler, const HttpLimits& limits)
    : listen_fd_(listen_fd),
      wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)),
      handler_(std::move(handler)),
      limits_(limits),
      mailbox_(std::make_shared<Mailbox>()) {
  MutexLock lock(&mailbox_->mu);
  mailbox_->wake_fd = wake_fd_;
}

HttpLoop::~HttpLoop() {
  {
    MutexLock lock(&mailbox_->mu);
    mailbox_->wake_fd = -1;
  }
  for (const auto& [id, connection] : connections_) close(connection.fd);
  close(listen_fd_);
  close(wake_fd_);
}

void HttpLoop::Stop() {
  MutexLock lock(&mailbox_->mu);
  mailbox_->stopping = true;
  mailbox_->Wake();
}

int HttpLoop::PollTimeoutMs(absl::Duration now) const {
  absl::Duration next = absl::InfiniteDuration();
  for (const auto& [id, connection] : connections_) next = std::min(next, connection.until - now);
  if (next == absl::InfiniteDuration()) return -1;
  return static_cast<int>(absl::ToInt64Milliseconds(std::max(next, absl::ZeroDuration()))) + 1;
}

void HttpLoop::Run() {
  std::vector<pollfd> polled;
  std::vector<uint64_t> ids;
  while (true) {
    polled = {{.fd = listen_fd_, .events = POLLIN, .revents = 0},
              {.fd = wake_fd_, .events = POLLIN, .revents = 0}};
    ids.clear();
    for (const auto& [id, connection] : connections_) {
      const short events = connection.state == State::kWriting     ? POLLOUT
                           : connection.state == State::kAnswering ? 0
                                                                   : POLLIN;
      polled.push_back({.fd = connection.fd, .events = events, .revents = 0});
      ids.push_back(id);
    }
    if (poll(polled.data(), polled.size(), PollTimeoutMs(SteadyNow())) < 0 && errno != EINTR)
      return;
    const absl::Duration now = SteadyNow();

    uint64_t ignored = 0;
    (void)!read(wake_fd_, &ignored, sizeof(ignored));
    std::vector<std::pair<uint64_t, HttpResponse>> responses;
    {
      MutexLock lock(&mailbox_->mu);
      if (mailbox_->stopping) return;
      responses.swap(mailbox_->responses);
    }
    for (const auto& [id, response] : responses) {
      const auto found = connections_.find(id);
      if (found == connections_.end() || found->second.state != State::kAnswering) continue;
      Answer(found->second, response, now);
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      Connection& connection = connections_.at(ids[i]);
      // The limit first: a client that sends a byte now and then must not live on.
      const bool keep = now >= connection.until      ? OnExpired(connection, now)
                        : polled[i + 2].revents != 0 ? OnReady(ids[i], connection, now)
                                                     : true;
      if (keep) continue;
      close(connection.fd);
      connections_.erase(ids[i]);
    }
    if (polled[0].revents != 0) Accept(now);
  }
}

void HttpLoop::Accept(absl::Duration now) {
  const int fd = accept4(listen_fd_, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
  if (fd < 0) return;
  if (connections_.size() >= limits_.max_connections) MakeRoom();
  connections_[next_id_++] = {.fd = fd, .until = now + limits_.request_limit};
}

void HttpLoop::MakeRoom() {
  // Who has not even asked yet, the oldest first; else simply the oldest.
  auto victim = std::find_if(connections_.begin(), connections_.end(), [](const auto& entry) {
    return entry.second.state == State::kReading;
  });
  if (victim == connections_.end()) victim = connections_.begin();
  close(victim->second.fd);
  connections_.erase(victim);
}

bool HttpLoop::OnReady(uint64_t id, Connection& connection, absl::Duration now) {
  switch (connection.state) {
    case State::kReading:
      return ReadSome(id, connection, now);
    case State::kAnswering:
      return false;  // nothing was asked of it, so it is an error: the client has gone
    case State::kWriting:
      return WriteSome(connection, now);
    case State::kDraining:
      return Drain(connection);
  }
  return false;
}

bool HttpLoop::ReadSome(uint64_t id, Connection& connection, absl::Duration now) {
  char buffer[2048];
  const ssize_t size = recv(connection.fd, buffer, sizeof(buffer), 0);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  if (size == 0) return false;
  connection.in.append(buffer, size);
  const size_t end = connection.in.find("\r\n\r\n");
  if (std::min(end, connection.in.size()) > limits_.max_header) {
    Answer(connection,
           {.status = 431,
            .body = absl::StrCat("a header has at most ", limits_.max_header, " bytes here\n")},
           now);
    return true;
  }
  if (end == std::string::npos) return true;
  connection.in.resize(end);
  Handle(id, connection, now);
  return true;
}

void HttpLoop::Handle(uint64_t id, Connection& connection, absl::Duration now) {
  const std::optional<ParsedRequest> parsed = Parse(connection.in);
  if (!parsed.has_value()) {
    Answer(connection, {.status = 400, .body = "not a request of HTTP/1\n"}, now);
    return;
  }
  connection.head = parsed->method == "HEAD";
  if (parsed->method != "GET" && !connection.head) {
    Answer(connection,
           {.status = 405,
            .body = "only GET and HEAD are served here\n",
            .extra_headers = "Allow: GET, HEAD\r\n"},
           now);
    return;
  }
  connection.state = State::kAnswering;
  connection.until = now + limits_.answer_limit;
  handler_(parsed->request, [mailbox = mailbox_, id](HttpResponse response) {
    MutexLock lock(&mailbox->mu);
    mailbox->responses.emplace_back(id, std::move(response));
    mailbox->Wake();
  });
}

void HttpLoop::Answer(Connection& connection, const HttpResponse& response, absl::Duration now) {
  connection.out = absl::StrCat(
      "HTTP/1.1 ", response.status, " ", ReasonPhrase(response.status),
      "\r\nContent-Type: ", response.content_type, "\r\nContent-Length: ", response.body.size(),
      "\r\nConnection: close\r\nCache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n",
      response.extra_headers, "\r\n", connection.head ? "" : response.body);
  connection.in.clear();
  connection.state = State::kWriting;
  connection.until = now + limits_.write_limit;
}

bool HttpLoop::WriteSome(Connection& connection, absl::Duration now) {
  const ssize_t size = send(connection.fd, connection.out.data() + connection.sent,
                            connection.out.size() - connection.sent, MSG_NOSIGNAL);
  if (size < 0) return errno == EAGAIN || errno == EINTR;
  connection.sent += size;
  if (connection.sent < connection.out.size()) return true;
  shutdown(connection.fd, SHUT_WR);
  connection.state = State::kDraining;
  connection.until = now + absl::Seconds(1);
  return true;
}

bool HttpLoop::Drain(Connection& connection) {
  char buffer[8192];
  const ssize_t size = recv(connection.fd, buffer, sizeof(buffer), 0);
  return size > 0 || (size < 0 && (errno == EAGAIN || errno == EINTR));
}

bool HttpLoop::OnExpired(Connection& connection, absl::Duration now) {
  if (connection.state != State::kAnswering) return false;
  Answer(connection, {.status = 503, .body = "the engine does not answer\n"}, now);
  return true;
}

}  // namespace muster
