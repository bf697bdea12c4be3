#include "worker/train/signals.h"

#include <pthread.h>
#include <signal.h>

#include <thread>

namespace muster {

void HandleExitSignals(std::function<void(int signal)> on_signal) {
  ::signal(SIGPIPE, SIG_IGN);
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGTERM);
  sigaddset(&signals, SIGINT);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  // Detached: it waits until the process ends.
  std::thread([signals, on_signal = std::move(on_signal)] {
    for (int signal = 0; sigwait(&signals, &signal) == 0;) on_signal(signal);
  }).detach();
}

}  // namespace muster
