// Ctrl-C and SIGTERM, counted. Async-signal-safe.
#pragma once

namespace muster {

// From now on SIGINT and SIGTERM are counted and do not end the process.
void CountInterrupts();
// The same, but the second one ends it at once: for commands that only look.
void CountOneInterrupt();
int NumInterrupts();

}  // namespace muster
