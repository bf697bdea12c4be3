#include "cli/client.h"
#include "cli/commands.h"
#include "cli/hold_workers.h"

namespace muster {
namespace {

int Cordon(const Invocation& invocation) {
  Client client(invocation);
  return PrintHeldWorkers(invocation, &client,
                          client.CordonWorker(invocation.arguments[0], /*undo=*/false));
}

int Uncordon(const Invocation& invocation) {
  Client client(invocation);
  return PrintHeldWorkers(invocation, &client,
                          client.CordonWorker(invocation.arguments[0], /*undo=*/true));
}

}  // namespace

Command CordonCommand() {
  return {.name = "cordon",
          .arguments = "WORKER|NODE",
          .help = "give a worker or a node no new rank",
          .details =
              "What runs there goes on; muster drain moves it elsewhere, too. Holds until muster "
              "uncordon, also when the worker is started again. Safe to repeat.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {JsonOption(), CoordinatorOption(), TokenFileOption()},
          .examples = {{"muster cordon node-3", "before maintenance that can wait"}},
          .run = Cordon};
}

Command UncordonCommand() {
  return {.name = "uncordon",
          .arguments = "WORKER|NODE",
          .help = "let a worker or a node take ranks again",
          .details =
              "Lifts whatever holds it back: a cordon, a drain, or a quarantine. A worker is in "
              "quarantine when a check of its device failed or a rerun convicted it (muster "
              "workers shows the evidence); its next check makes the device's record anew. Safe to "
              "repeat.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {JsonOption(), CoordinatorOption(), TokenFileOption()},
          .examples = {{"muster uncordon node-3/0", "when its device was changed"}},
          .run = Uncordon};
}

}  // namespace muster
