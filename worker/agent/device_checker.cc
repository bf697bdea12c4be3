#include "worker/agent/device_checker.h"

#include <csignal>
#include <deque>
#include <optional>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/runtime/clock.h"
#include "common/runtime/log.h"
#include "common/runtime/mutex.h"
#include "worker/agent/trainer_process.h"

namespace muster {
namespace {

// One process; its result is what it wrote that reads as a check.
class Check {
 public:
  Check(const std::string& program, const std::string& device, absl::Duration limit)
      : device_(device) {
    auto process = TrainerProcess::Start({.program = program,
                                          .arguments = {"--check-device", device},
                                          .env = {{"OMP_NUM_THREADS", "1"}},
                                          .log_path = "/dev/null"},
                                         {.on_message = [](std::string) {},
                                          .on_log_line = [this](std::string line) { OnLine(line); },
                                          .on_exit = [this](TrainerExit exit) { OnExit(exit); }});
    if (!process.ok()) {
      MutexLock lock(&mu_);
      ended_ = true;
      problem_ = std::string(process.status().message());
      return;
    }
    process_ = *std::move(process);
    process_->CloseControl();  // a program that takes no such order leaves
    process_->KillAfter(limit, absl::StrCat("it took more than ", absl::FormatDuration(limit)));
  }

  void Cancel() {
    if (process_ != nullptr) process_->KillAfter(absl::ZeroDuration(), "the agent is ending");
  }

  // Waits for its end, which is certain.
  DeviceCheck Result() {
    MutexLock lock(&mu_);
    while (!ended_) changed_.Wait(&mu_);
    if (check_) {
      check_->device = device_;
      return *check_;
    }
    return {.device = device_,
            .error = absl::StrCat("the device check was not run: ", problem_),
            .not_run = true};
  }

 private:
  void OnLine(const std::string& line) {
    auto check = DecodeDeviceCheck(line);
    MutexLock lock(&mu_);
    if (check.ok()) check_ = *std::move(check);
  }
  void OnExit(const TrainerExit& exit) {
    MutexLock lock(&mu_);
    ended_ = true;
    problem_ = exit.Describe();
    // A crash in the middle is the device's, or the driver's. A kill is a person's, or the kernel's
    // for want of memory, and says nothing of the device.
    const bool killed = exit.signal == SIGKILL || exit.signal == SIGTERM || exit.signal == SIGINT;
    if (!check_ && exit.signal != 0 && !killed && exit.error.empty()) {
      check_ = DeviceCheck{.error = absl::StrCat("the device check crashed: ", problem_)};
    }
    changed_.NotifyAll();
  }

  const std::string device_;
  Mutex mu_;
  CondVar changed_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  std::string problem_ ABSL_GUARDED_BY(mu_);
  std::optional<DeviceCheck> check_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<TrainerProcess> process_;  // last: its callbacks use the others
};

}  // namespace

class DeviceChecker::Impl {
 public:
  explicit Impl(Options options) : options_(std::move(options)) {}

  ~Impl() {
    {
      MutexLock lock(&mu_);
      ending_ = true;
      for (auto& [device, check] : running_) check->Cancel();
      changed_.NotifyAll();
    }
    if (thread_.joinable()) thread_.join();
  }

  std::map<std::string, DeviceCheck> CheckNow(const std::vector<std::string>& devices) {
    std::map<std::string, std::shared_ptr<Check>> checks;
    {
      MutexLock lock(&mu_);
      for (const std::string& device : devices) {
        if (checks.contains(device)) continue;
        checks[device] = std::make_shared<Check>(options_.program, device, options_.limit);
        if (ending_) checks[device]->Cancel();
      }
      running_ = checks;
    }
    std::map<std::string, DeviceCheck> results;
    for (auto& [device, check] : checks) {
      const DeviceCheck& result = results[device] = check->Result();
      if (result.error.empty()) {
        MUSTER_LOG(kInfo) << "checked the device " << device << " (" << result.kind
                          << "): " << result.copy_gb_per_s << " GB/s";
      } else {
        MUSTER_LOG(kWarning) << "device " << device << ": " << result.error;
      }
    }
    {
      MutexLock lock(&mu_);
      running_.clear();
    }
    return results;
  }

  void CheckLater(const std::string& device, std::function<void(DeviceCheck)> done) {
    MutexLock lock(&mu_);
    queue_.push_back({clock_.Steady() + options_.delay, device, std::move(done)});
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    changed_.NotifyAll();
  }

 private:
  struct Order {
    absl::Duration at;
    std::string device;
    std::function<void(DeviceCheck)> done;
  };

  void Run() {
    while (true) {
      std::deque<Order> due;
      {
        MutexLock lock(&mu_);
        while (!ending_ && (queue_.empty() || clock_.Steady() < queue_.front().at)) {
          if (queue_.empty()) {
            changed_.Wait(&mu_);
          } else {
            changed_.WaitFor(&mu_, queue_.front().at - clock_.Steady());
          }
        }
        if (ending_) return;
        // One process answers all that ask for its device by now.
        due.swap(queue_);
      }
      std::vector<std::string> devices;
      for (const Order& order : due) devices.push_back(order.device);
      const std::map<std::string, DeviceCheck> results = CheckNow(devices);
      {
        MutexLock lock(&mu_);
        if (ending_) return;
      }
      for (const Order& order : due) order.done(results.at(order.device));
    }
  }

  const Options options_;
  RealClock clock_;
  Mutex mu_;
  CondVar changed_;
  bool ending_ ABSL_GUARDED_BY(mu_) = false;
  std::deque<Order> queue_ ABSL_GUARDED_BY(mu_);  // by time
  std::map<std::string, std::shared_ptr<Check>> running_ ABSL_GUARDED_BY(mu_);
  std::thread thread_;
};

DeviceChecker::DeviceChecker(Options options) : impl_(std::make_unique<Impl>(std::move(options))) {}
DeviceChecker::~DeviceChecker() = default;
std::map<std::string, DeviceCheck> DeviceChecker::CheckNow(
    const std::vector<std::string>& devices) {
  return impl_->CheckNow(devices);
}
void DeviceChecker::CheckLater(const std::string& device, std::function<void(DeviceCheck)> done) {
  impl_->CheckLater(device, std::move(done));
}

}  // namespace muster
