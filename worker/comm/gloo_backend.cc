#include "worker/comm/gloo_backend.h"

#include <exception>
#include <set>
#include <utility>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "absl/strings/str_cat.h"
#include "common/runtime/mutex.h"
#include "worker/comm/own_listener.h"

// Exported by libtorch_cpu but in no header (CMake checks that it is there): what gloo calls on
// every pair when an operation times out.
namespace gloo::transport::tcp {
struct Pair {
  std::exception_ptr signalExceptionExternal(const std::string& message);
};
}  // namespace gloo::transport::tcp

namespace muster {
namespace {

class SignallingGroup final : public c10d::ProcessGroupGloo {
 public:
  using ProcessGroupGloo::ProcessGroupGloo;

  void SignalPairs() {
    for (const auto& context : contexts_) {
      for (int peer = 0; peer < getSize(); ++peer) {
        if (peer != getRank()) Signal(*context, peer);
      }
    }
  }

 private:
  static void Signal(::gloo::Context& context, int peer) {
    try {
      auto* const pair =
          reinterpret_cast<::gloo::transport::tcp::Pair*>(context.getPair(peer).get());
      if (pair != nullptr) pair->signalExceptionExternal("the group was aborted");
    } catch (const std::exception&) {
      // A pair that has failed before throws its first error again: it is signalled already.
    }
  }
};

std::chrono::milliseconds Milliseconds(absl::Duration limit) {
  return std::chrono::milliseconds(absl::ToInt64Milliseconds(std::min(limit, absl::Hours(24))));
}

// Groups may open at the same time; each must see only its own listener appear.
Mutex open_mu;

}  // namespace

struct GlooBackend::Impl {
  Options options;
  std::shared_ptr<::gloo::transport::Device> device;
  std::string listener;
  absl::Duration limit;  // that gloo keeps now
  c10::intrusive_ptr<SignallingGroup> group;
};

GlooBackend::GlooBackend(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GlooBackend::~GlooBackend() = default;

absl::StatusOr<std::unique_ptr<GlooBackend>> GlooBackend::Open(const Options& options) {
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  MutexLock lock(&open_mu);
  const std::set<std::string> before = OwnListeners();
  try {
    impl->device = c10d::ProcessGroupGloo::createDeviceForHostname(options.host, false);
  } catch (const std::exception& e) {
    return absl::UnavailableError(absl::StrCat(
        "cannot listen on host ", options.host,
        " (it must be an address of this machine): ", std::string(e.what()).substr(0, 200)));
  }
  for (const std::string& listener : OwnListeners()) {
    if (before.count(listener) == 0) impl->listener = listener;
  }
  return std::unique_ptr<GlooBackend>(new GlooBackend(std::move(impl)));
}

absl::Status GlooBackend::Connect(const c10::intrusive_ptr<c10d::Store>& store) {
  auto options = c10d::ProcessGroupGloo::Options::create();
  options->threads = 2;
  impl_->limit = impl_->options.operation_limit;
  options->timeout = Milliseconds(impl_->limit);
  options->devices.push_back(impl_->device);
  try {
    impl_->group = c10::make_intrusive<SignallingGroup>(store, impl_->options.rank,
                                                        impl_->options.size, options);
  } catch (const std::exception& e) {
    const std::string what = e.what();
    return absl::UnavailableError(what.substr(0, what.find('\n')));
  }
  return absl::OkStatus();
}

void GlooBackend::Poke() {
  if (!impl_->listener.empty()) PokeListener(impl_->listener, impl_->options.size);
}

c10d::Backend& GlooBackend::ops() { return *impl_->group; }

void GlooBackend::SetLimit(absl::Duration limit) {
  if (limit == impl_->limit) return;
  impl_->limit = limit;
  impl_->group->setTimeout(Milliseconds(limit));
}

void GlooBackend::SignalPairs() {
  if (impl_->group) impl_->group->SignalPairs();
}

}  // namespace muster
