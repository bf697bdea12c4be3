// Stands in for muster-trainer where only the agent and the control plane are under test: speaks
// the control protocol, "trains" by waiting, acts on directives, and misbehaves as its environment
// (resources.env of the spec) says:
//   FAKE_STEP_MS        length of a step
//   FAKE_CRASH_RANK, FAKE_CRASH_STEP   this rank kills itself at this step with SIGSEGV
//   FAKE_PROGRESS=0                    does not say how far it is. It steps on without its peers;
//                                      a real one whose peer is gone would not
//   FAKE_IGNORE_SHUTDOWN               stays when told to leave (until it is killed)
// In a later epoch it goes on behind what the coordinator's ledger holds. Its "state" is the number
// of its last step, in its snapshot memory; it prints what it finds there.
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/numbers.h"
#include "common/control/device_check.h"
#include "common/control/messages.h"
#include "common/runtime/life_lock.h"
#include "common/spec/spec_json.h"

namespace muster {
namespace {

constexpr int kControlFd = 3;

int FromEnvironment(const char* name, int fallback) {
  const char* text = getenv(name);
  int value = fallback;
  if (text != nullptr && !absl::SimpleAtoi(text, &value)) return fallback;
  return value;
}

class FakeTrainer {
 public:
  int Run() {
    Send(HelloMessage{.pid = getpid()});
    while (!leaving_) {
      if (std::exchange(start_, false)) {
        Train();
      } else {
        Receive(-1);
      }
    }
    return 0;
  }

 private:
  void Send(const TrainerToAgent& message) {
    const std::string line = Encode(message);
    if (write(kControlFd, line.data(), line.size()) != ssize_t(line.size())) _exit(1);
  }

  // Handles what comes within `limit_ms` (-1: for ever).
  void Receive(int limit_ms) {
    pollfd polled = {kControlFd, POLLIN, 0};
    if (poll(&polled, 1, limit_ms) <= 0) return;
    char bytes[4096];
    const ssize_t count = read(kControlFd, bytes, sizeof(bytes));
    if (count <= 0) _exit(0);  // the agent is gone
    pending_.append(bytes, count);
    for (size_t end; (end = pending_.find('\n')) != std::string::npos;) {
      const std::string line = pending_.substr(0, end);
      pending_.erase(0, end + 1);
      const auto message = DecodeAgentToTrainer(line);
      if (!message.ok()) {
        fprintf(stderr, "bad message: %s\n", std::string(message.status().message()).c_str());
        _exit(1);
      }
      std::visit([this](const auto& m) { On(m); }, *message);
    }
  }

  void On(const AssignMessage& assign) {
    assign_ = assign;
    aborted_ = start_ = false;
    directives_.clear();
    printf("rank %d of %d\n", assign.rank, assign.world_size);
    LookAtSnapshot();
    fflush(stdout);
    if (assign.rank < 0) {
      Send(PhaseMessage{.epoch = assign.epoch, .phase = "spare"});
      return;
    }
    Send(PhaseMessage{.epoch = assign.epoch, .phase = "forming"});
    if (assign.rank == 0) {
      Send(PublishUniqueIdMessage{.epoch = assign.epoch, .id = "abcd"});
    }
  }
  void On(const UniqueIdMessage& id) {
    if (assign_ && id.epoch == assign_->epoch && assign_->rank >= 0) start_ = true;
  }
  void On(const DirectiveMessage& message) { directives_.push_back(message.directive); }
  void On(const AbortMessage&) { aborted_ = true; }
  void On(const ShutdownMessage&) {
    if (getenv("FAKE_IGNORE_SHUTDOWN") != nullptr) {
      while (true) pause();
    }
    leaving_ = true;
  }
  void On(const StoreReplyMessage&) {}
  void On(const ProbeMessage& probe) {
    Send(ProbeReplyMessage{.epoch = probe.epoch,
                           .request = probe.request,
                           .iteration = iteration_,
                           .phase = training_ ? "training" : "waiting"});
  }

  void LookAtSnapshot() {
    if (assign_->snapshot_memory.empty()) return;
    FILE* file = fopen(assign_->snapshot_memory.c_str(), "r");
    int64_t step = 0;
    if (file == nullptr) {
      printf("no snapshot memory: %s\n", strerror(errno));
    } else if (fscanf(file, "%ld", &step) == 1) {
      printf("snapshot of step %ld\n", step);
    } else {
      printf("empty snapshot memory\n");
    }
    if (file != nullptr) fclose(file);
  }
  void TakeSnapshot(int64_t step) {
    if (assign_->snapshot_memory.empty()) return;
    FILE* file = fopen(assign_->snapshot_memory.c_str(), "w");
    if (file == nullptr) return;
    fprintf(file, "%ld\n", step);
    fclose(file);
  }

  // "Gives its state" and leaves.
  void Help() {
    Send(PhaseMessage{.epoch = assign_->epoch, .phase = "helping"});
    Send(DoneMessage{.epoch = assign_->epoch, .reason = "gave its state"});
  }

  void Train() {
    if (assign_->rank >= assign_->world_size) return Help();
    training_ = true;
    const JobSpec spec = ParseJobSpec(assign_->spec_json).spec;
    const int64_t epoch = assign_->epoch, last = spec.training.train_iters.value_or(10);
    const int step_ms = FromEnvironment("FAKE_STEP_MS", 5);
    const bool says_progress = FromEnvironment("FAKE_PROGRESS", 1) != 0;
    const int64_t before = assign_->ledger_through;
    if (epoch > 1) {
      Send(PhaseMessage{.epoch = epoch, .phase = "restoring"});
      if (assign_->rank == 0) {
        Send(RestoredMessage{.epoch = epoch, .iteration = before, .source = "live"});
      }
    }
    Send(PhaseMessage{.epoch = epoch, .phase = "training"});
    std::string reason = "trained all iterations";
    yielded_ = false;
    for (int64_t step = before + 1; step <= last; ++step) {
      Receive(step_ms);
      if (aborted_ || leaving_ || yielded_ || assign_->epoch != epoch) break;
      if (assign_->rank == FromEnvironment("FAKE_CRASH_RANK", -1) &&
          step == FromEnvironment("FAKE_CRASH_STEP", 3)) {
        fprintf(stderr, "about to crash at step %d\n", int(step));
        raise(SIGSEGV);
      }
      iteration_ = step;
      TakeSnapshot(step);
      if (assign_->rank == 0) {
        Send(StepMessage{.epoch = epoch,
                         .iteration = step,
                         .consumed_samples = step * 2,
                         .lm_loss = 5.0 / double(step) + 0.1,
                         .grad_norm = 1.0 / 3.0,
                         .load_balancing_loss = 4.0 / 3.0,
                         .learning_rate = 1e-3,
                         .elapsed_ms = double(step_ms),
                         .tokens_per_s = 1000});
      }
      // As the real one: by every rank, at most every 200 ms.
      if (says_progress && step % (200 / std::max(step_ms, 1) + 1) == 0) {
        Send(ProgressMessage{.epoch = epoch, .iteration = step});
      }
      if (Obey(epoch, step, &reason)) break;
    }
    training_ = false;
    if (aborted_ || leaving_ || yielded_ || assign_->epoch != epoch) return;
    Send(DoneMessage{.epoch = epoch, .reason = reason});
  }

  // True when a directive ends the run.
  bool Obey(int64_t epoch, int64_t step, std::string* reason) {
    bool ends = false;
    while (!directives_.empty()) {
      const Directive directive = directives_.front();
      directives_.pop_front();
      const bool saves = directive.kind == Directive::Kind::kCheckpoint ||
                         directive.kind == Directive::Kind::kCheckpointAndStop;
      if (saves && assign_->rank == 0) {
        Send(CheckpointMessage{
            .epoch = epoch, .iteration = step, .path = "/fake/checkpoint", .ok = true});
      }
      if (directive.kind == Directive::Kind::kEvaluate && assign_->rank == 0) {
        Send(EvaluationMessage{.epoch = epoch,
                               .iteration = step,
                               .split = "valid",
                               .lm_loss = 1.5,
                               .ppl = std::exp(1.5)});
      }
      if (directive.kind == Directive::Kind::kReform) {
        Send(PhaseMessage{.epoch = epoch, .phase = "yielded"});
        yielded_ = true;
      }
      if (directive.kind == Directive::Kind::kStop ||
          directive.kind == Directive::Kind::kCheckpointAndStop) {
        *reason = "stop directive: " + directive.reason;
        ends = true;
      }
    }
    return ends;
  }

  std::string pending_;
  std::optional<AssignMessage> assign_;
  std::deque<Directive> directives_;
  int64_t iteration_ = 0;
  bool start_ = false, training_ = false, yielded_ = false, aborted_ = false, leaving_ = false;
};

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  signal(SIGPIPE, SIG_IGN);
  if (argc > 1 && std::string(argv[1]) == "--check-device") {
    puts(
        muster::Encode(muster::DeviceCheck{.kind = "fake", .fingerprint = "f0", .copy_gb_per_s = 1})
            .c_str());
    return 0;
  }
  for (int i = 1; i + 1 < argc; ++i) {
    const bool is_lock = std::string(argv[i]) == "--life-lock";
    if (is_lock && !muster::LifeLock::Hold(argv[i + 1]).ok()) return 1;
  }
  return muster::FakeTrainer().Run();
}
