#include "coordinator/server/http_pages.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "coordinator/server/metrics_text.h"
#include "coordinator/server/status_page.h"
#include "coordinator/server/status_view.h"

namespace muster {
namespace {

constexpr size_t kMaxWaiting = 256;  // for one page
constexpr absl::Duration kStuck = absl::Seconds(2);

// Nothing is loaded from anywhere, and nothing runs.
constexpr char kPageHeaders[] =
    "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'\r\nReferrer-Policy: no-referrer\r\n";

HttpResponse Stopping() { return {.status = 503, .body = "the coordinator is stopping\n"}; }

}  // namespace

void HttpPages::Handle(const HttpRequest& request, HttpRespond respond) {
  const bool open = request.path == "/healthz" || options_.token.empty();
  if (!open && !options_.token.Matches(request.authorization)) {
    respond({.status = 401,
             .body = "this port asks for the cluster's token, as Authorization: Bearer TOKEN; only "
                     "/healthz is open\n",
             .extra_headers = "WWW-Authenticate: Bearer\r\n"});
    return;
  }
  const std::string path = request.path == "/" ? "/status" : request.path;
  if (path != "/healthz" && path != "/metrics" && path != "/status") {
    respond({.status = 404, .body = "here are /healthz, /metrics and /status\n"});
    return;
  }
  HttpResponse ready;
  {
    MutexLock lock(&mu_);
    Page& page = pages_[path];
    const bool fresh = clock_->Steady() - page.rendered_at < options_.keep;
    if (!fresh && page.waiting.size() < kMaxWaiting) {
      page.waiting.push_back(std::move(respond));
      if (std::exchange(page.rendering, true)) return;
      respond = nullptr;
    } else {
      ready = fresh ? page.newest : HttpResponse{.status = 503, .body = "too many ask for it\n"};
    }
  }
  if (respond != nullptr) {
    respond(std::move(ready));
  } else {
    Render(path);
  }
}

void HttpPages::Render(const std::string& path) {
  const absl::Status posted = engine_->Read(
      [this, path](const absl::Status& status, const Coordinator& core, absl::Time now) {
        Publish(path, status.ok() ? RenderFrom(path, core, now) : Stopping());
      });
  if (!posted.ok()) Publish(path, Stopping());
}

HttpResponse HttpPages::RenderFrom(const std::string& path, const Coordinator& core,
                                   absl::Time now) const {
  if (path == "/healthz") return Health(core);
  if (path == "/metrics") {
    return {.content_type = "text/plain; version=0.0.4; charset=utf-8",
            .body = absl::StrCat(RenderMetrics(core),
                                 options_.more_metrics ? options_.more_metrics() : "")};
  }
  return {.content_type = "text/html; charset=utf-8",
          .body = RenderStatusPage(StatusViewOf(core, now)),
          .extra_headers = kPageHeaders};
}

HttpResponse HttpPages::Health(const Coordinator& core) const {
  const absl::Duration age = options_.tick_age ? options_.tick_age() : absl::ZeroDuration();
  const bool stuck = age > kStuck;
  const StorageState& storage = core.storage();
  return {
      .status = stuck ? 503 : 200,
      .body = absl::StrCat(
          stuck              ? "stuck"
          : storage.writable ? "ok"
                             : "degraded",
          "\nengine: last tick ", absl::ToInt64Milliseconds(age), " ms ago\njournal: ",
          storage.writable ? "writable" : absl::StrCat("not writable: ", storage.reason), "\n")};
}

void HttpPages::Publish(const std::string& path, const HttpResponse& response) {
  std::vector<HttpRespond> waiting;
  {
    MutexLock lock(&mu_);
    Page& page = pages_[path];
    page.rendering = false;
    page.newest = response;
    // Whether it lives is asked anew each time.
    if (path != "/healthz" && response.status == 200) page.rendered_at = clock_->Steady();
    waiting.swap(page.waiting);
  }
  for (const HttpRespond& respond : waiting) respond(response);
}

}  // namespace muster
