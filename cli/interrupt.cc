#include "cli/interrupt.h"

#include <signal.h>

#include <atomic>

namespace muster {
namespace {

std::atomic<int> num_interrupts{0};
static_assert(std::atomic<int>::is_always_lock_free);

void OnSignal(int) { num_interrupts.fetch_add(1); }

}  // namespace

void CountInterrupts() {
  struct sigaction action = {};
  action.sa_handler = OnSignal;
  action.sa_flags = SA_RESTART;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
}

int NumInterrupts() { return num_interrupts.load(); }

}  // namespace muster
