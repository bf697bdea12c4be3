// Ctrl-C and SIGTERM, counted. Async-signal-safe.
#pragma once

namespace muster {

// From now on SIGINT and SIGTERM are counted and do not end the process.
void CountInterrupts();
int NumInterrupts();

}  // namespace muster
