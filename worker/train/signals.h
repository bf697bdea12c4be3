// SIGTERM and SIGINT ask for checkpoint and exit (training.exit_signal_handler); they are taken by
// a thread that waits for them, so that no code runs inside a handler.
#pragma once

#include <functional>

namespace muster {

// Call before any other thread starts: the signals are blocked in all of them. `on_signal` runs in
// the waiting thread. SIGPIPE is ignored: gloo writes to sockets whose peer may be gone.
void HandleExitSignals(std::function<void(int signal)> on_signal);

}  // namespace muster
