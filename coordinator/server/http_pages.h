// What the HTTP port shows: /healthz (alive? can it write?), /metrics (Prometheus text), /status
// (one page for people, also at /). All is read on the engine's thread, at most twice a second a
// page however many ask. Thread-safe.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/rpc/token.h"
#include "common/runtime/clock.h"
#include "common/runtime/mutex.h"
#include "coordinator/engine/engine.h"
#include "coordinator/server/http_server.h"

namespace muster {

struct HttpPagesOptions {
  // What all pages but /healthz ask for, as `Authorization: Bearer TOKEN`. Empty: nothing.
  Token token;
  // More families for /metrics, from outside of the core. Called on the engine's thread.
  std::function<std::string()> more_metrics;
  // Since the engine's last tick.
  std::function<absl::Duration()> tick_age;
  absl::Duration keep = absl::Milliseconds(500);  // an answer
};

class HttpPages {
 public:
  // `engine` and `clock` outlive the pages, and the pages the engine's callbacks.
  HttpPages(HttpPagesOptions options, Engine* engine, Clock* clock)
      : options_(std::move(options)), engine_(engine), clock_(clock) {}

  void Handle(const HttpRequest& request, HttpRespond respond);

 private:
  struct Page {
    bool rendering = false;
    absl::Duration rendered_at = -absl::InfiniteDuration();  // steady time
    HttpResponse newest;
    std::vector<HttpRespond> waiting;
  };
  void Render(const std::string& path);
  HttpResponse RenderFrom(const std::string& path, const Coordinator& core, absl::Time now) const;
  HttpResponse Health(const Coordinator& core) const;
  void Publish(const std::string& path, const HttpResponse& response);

  const HttpPagesOptions options_;
  Engine* const engine_;
  Clock* const clock_;
  Mutex mu_;
  std::map<std::string, Page> pages_ ABSL_GUARDED_BY(mu_);
};

}  // namespace muster
