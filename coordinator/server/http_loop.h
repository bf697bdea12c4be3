// The connections of the HTTP server and the one thread that serves them.
//
//   READING -1-> ANSWERING -2-> WRITING -3-> DRAINING -4-> (closed)
//   1 the header is whole and asks for something that the handler may know.
//   2 the handler has responded, or answer_limit has passed. Bad requests come here from READING.
//   3 the answer is sent. 4 the client has closed its end, or a second has passed: a close while
//   its bytes are unread would take the answer from it.
// Each state but the last step ends with the connection when its limit has passed.
#pragma once

#include <poll.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "common/runtime/mutex.h"
#include "coordinator/server/http_server.h"

namespace muster {

class HttpLoop {
 public:
  // Takes `listen_fd` over; it does not block.
  HttpLoop(int listen_fd, HttpHandler handler, const HttpLimits& limits);
  ~HttpLoop();

  void Run();   // until Stop
  void Stop();  // from any thread

 private:
  enum class State { kReading, kAnswering, kWriting, kDraining };
  struct Connection {
    int fd = -1;
    State state = State::kReading;
    absl::Duration until;  // steady time
    std::string in, out;
    size_t sent = 0;
    bool head = false;  // HEAD: the body is left out
  };
  // Outlives the loop in the hands of late responders.
  struct Mailbox {
    Mutex mu;
    int wake_fd ABSL_GUARDED_BY(mu) = -1;  // -1: the loop has gone
    bool stopping ABSL_GUARDED_BY(mu) = false;
    std::vector<std::pair<uint64_t, HttpResponse>> responses ABSL_GUARDED_BY(mu);
    void Wake() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu);
  };

  void Accept(absl::Duration now);
  void MakeRoom();
  // Each returns false when the connection is to be closed.
  bool OnReady(uint64_t id, Connection& connection, absl::Duration now);
  bool ReadSome(uint64_t id, Connection& connection, absl::Duration now);
  bool WriteSome(Connection& connection, absl::Duration now);
  bool Drain(Connection& connection);
  bool OnExpired(Connection& connection, absl::Duration now);
  void Handle(uint64_t id, Connection& connection, absl::Duration now);
  void Answer(Connection& connection, const HttpResponse& response, absl::Duration now);
  int PollTimeoutMs(absl::Duration now) const;

  const int listen_fd_, wake_fd_;
  const HttpHandler handler_;
  const HttpLimits limits_;
  const std::shared_ptr<Mailbox> mailbox_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Connection> connections_;  // by age
};

}  // namespace muster
