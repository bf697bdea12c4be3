#include "cli/interrupt.h"

#include <signal.h>
#include <unistd.h>

#include <atomic>

#include "cli/command.h"

namespace muster {
namespace {

std::atomic<int> num_interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free);

void OnSignal(int) { num_interrupts.fetch_add(1); }

void OnSignalOfALooker(int) {
  if (num_interrupts.fetch_add(1) > 0) _exit(kExitInterrupted);
}

void Install(void (*handler)(int)) {
  struct sigaction action = {};
  action.sa_handler = handler;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

}  // namespace

void CountInterrupts() { Install(OnSignal); }
void CountOneInterrupt() { Install(OnSignalOfALooker); }
int NumInterrupts() { return num_interrupts.load(); }

}  // namespace muster
