// muster-trainer: started by the agent with --control-fd N, or with --check-device before it
// registers; or by `muster generate` with --generate.
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <iostream>
#include <optional>
#include <string>
#include <vector>

#include <ATen/Parallel.h>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/runtime/life_lock.h"
#include "common/runtime/log.h"
#include "worker/model/caching_allocator.h"
#include "worker/provider/builtin.h"
#include "worker/train/device_check.h"
#include "worker/train/generate.h"
#include "worker/train/session.h"
#include "worker/train/signals.h"
#include "worker/train/trainer_backends.h"

namespace muster {
namespace {

constexpr char kUsage[] =
    "usage: muster-trainer --control-fd N [--life-lock PATH]\n"
    "       muster-trainer --check-device cpu|cuda:N\n"
    "       muster-trainer --generate --checkpoint DIR --prompt TEXT [--ckpt-step N] "
    "[--max-new-tokens N]\n"
    "                      [--temperature T] [--top-k K] [--seed S] [--threads N]\n"
    "The agent (muster-worker) starts trainers; `muster generate` is the command for people.\n";

struct Flags {
  std::optional<int64_t> control_fd, ckpt_step;
  bool generate = false;
  std::string life_lock, check_device, checkpoint, prompt;
  int64_t max_new_tokens = 100, top_k = 0, seed = 1234, threads = 0;
  double temperature = 1.0;
};

absl::StatusOr<Flags> ParseFlags(int argc, char** argv) {
  Flags flags;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--generate") {
      flags.generate = true;
      continue;
    }
    if (i + 1 >= argc)
      return absl::InvalidArgumentError(absl::StrCat(name, " needs a value, or is unknown"));
    const std::string value = argv[++i];
    int64_t number = 0;
    const bool is_number = absl::SimpleAtoi(value, &number);
    bool good = true;
    if (name == "--checkpoint") {
      flags.checkpoint = value;
    } else if (name == "--check-device") {
      flags.check_device = value;
    } else if (name == "--prompt") {
      flags.prompt = value;
    } else if (name == "--temperature") {
      good = absl::SimpleAtod(value, &flags.temperature) && flags.temperature >= 0;
    } else if (name == "--control-fd") {
      flags.control_fd = number, good = is_number && number >= 0;
    } else if (name == "--life-lock") {
      flags.life_lock = value;
    } else if (name == "--ckpt-step") {
      flags.ckpt_step = number, good = is_number && number >= 0;
    } else if (name == "--max-new-tokens") {
      flags.max_new_tokens = number, good = is_number && number >= 0;
    } else if (name == "--top-k") {
      flags.top_k = number, good = is_number && number >= 0;
    } else if (name == "--seed") {
      flags.seed = number, good = is_number;
    } else if (name == "--threads") {
      flags.threads = number, good = is_number && number >= 0;
    } else {
      return absl::InvalidArgumentError(absl::StrCat("unknown flag ", name));
    }
    if (!good)
      return absl::InvalidArgumentError(
          absl::StrCat(name, "=", value, ": must be a number of at least 0"));
  }
  if (!flags.check_device.empty()) return flags;
  if (!flags.generate && !flags.control_fd)
    return absl::InvalidArgumentError("--control-fd or --generate is needed");
  if (flags.generate && flags.checkpoint.empty())
    return absl::InvalidArgumentError("--generate needs --checkpoint DIR");
  return flags;
}

int RunGenerate(const Flags& flags) {
  if (flags.threads > 0) at::set_num_threads(static_cast<int>(flags.threads));
  ProviderRegistry providers;
  RegisterBuiltinProviders(providers);
  const absl::Status status =
      Generate(GenerateOptions{.checkpoint = flags.checkpoint,
                               .ckpt_step = flags.ckpt_step,
                               .prompt = flags.prompt,
                               .max_new_tokens = flags.max_new_tokens,
                               .sampling = {.temperature = flags.temperature, .top_k = flags.top_k},
                               .seed = flags.seed,
                               .providers = providers},
               [](const std::string& text) {
                 std::fwrite(text.data(), 1, text.size(), stdout);
                 std::fflush(stdout);
               });
  if (!status.ok()) {
    std::cerr << "muster generate: " << status.message() << "\n";
    return absl::IsInvalidArgument(status) || absl::IsNotFound(status) ? 2 : 1;
  }
  std::cout << std::endl;
  return 0;
}

int RunCheckDevice(const std::string& device) {
  const absl::Status in_use = UseDevice(device);
  const DeviceCheck check =
      in_use.ok() ? CheckDevice(device, IdentifyDevice(device))
                  : DeviceCheck{.device = device, .error = std::string(in_use.message())};
  std::cout << Encode(check) << std::endl;
  return check.error.empty() ? 0 : 1;
}

int RunDaemon(int fd, const std::string& life_lock) {
  SetLogName("trainer");
  if (::fcntl(fd, F_GETFD) < 0) {
    std::cerr << "muster-trainer: --control-fd=" << fd
              << " is not open; the agent starts trainers\n";
    return 2;
  }
  std::atomic<ControlClient*> client_of_signals{nullptr};
  HandleExitSignals([&client_of_signals](int signal) {
    MUSTER_LOG(kInfo) << "signal " << signal << ": checkpoint and exit at the end of this step";
    if (ControlClient* client = client_of_signals) client->NoteExitSignal();
  });
  if (!life_lock.empty()) {
    // Before the first word to the agent, which takes that for the sign that it is held.
    const absl::Status held = LifeLock::Hold(life_lock);
    if (!held.ok()) {
      MUSTER_LOG(kWarning) << "a death of this process is known late: " << held.message();
    }
  }
  RealClock clock;
  // Nobody is left who could stop this process: it must not go on alone.
  ControlClient client(fd, [] {
    MUSTER_LOG(kError) << "the agent is gone: leaving";
    std::_Exit(1);
  });
  client_of_signals = &client;
  const int exit_code = RunSession(SessionOptions{.client = client,
                                                  .clock = clock,
                                                  .use_device = UseDevice,
                                                  .make_unique_id = MakeUniqueId,
                                                  .form_world = FormWorldOnBackend});
  client_of_signals = nullptr;
  client.Flush(absl::Seconds(2));
  // Retired communicators may still sleep inside gloo; nothing of this process is worth waiting for
  // them.
  std::_Exit(exit_code);
}

}  // namespace
}  // namespace muster

int main(int argc, char** argv) {
  // Activations of every step have the sizes of the last: keep their pages.
  muster::InstallCachingCpuAllocator();
  const auto flags = muster::ParseFlags(argc, argv);
  if (!flags.ok()) {
    std::cerr << "muster-trainer: " << flags.status().message() << "\n" << muster::kUsage;
    return 2;
  }
  if (!flags->check_device.empty()) return muster::RunCheckDevice(flags->check_device);
  return flags->generate
             ? muster::RunGenerate(*flags)
             : muster::RunDaemon(static_cast<int>(*flags->control_fd), flags->life_lock);
}
