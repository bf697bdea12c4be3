#include "cli/client.h"
#include "cli/commands.h"
#include "cli/hold_workers.h"

namespace muster {
namespace {

int Drain(const Invocation& invocation) {
  Client client(invocation);
  return PrintHeldWorkers(invocation, &client,
                          client.DrainWorker(invocation.arguments[0], invocation.Has("--undo")));
}

}  // namespace

Command DrainCommand() {
  return {.name = "drain",
          .arguments = "WORKER|NODE",
          .help = "move the ranks of a worker or a node elsewhere",
          .details =
              "The worker (or each one of the node) gets no new rank, and those that it has move "
              "to spares of their jobs or to idle workers between two steps, without loss. Where "
              "there is none they go on until there is; the answer says so, and muster workers and "
              "muster status do until then. Holds until --undo or muster uncordon, also when the "
              "worker is started again. Safe to repeat.",
          .min_arguments = 1,
          .max_arguments = 1,
          .options = {{.name = "--undo", .help = "let it take ranks again"},
                      JsonOption(),
                      CoordinatorOption(),
                      TokenFileOption()},
          .examples = {{"muster drain node-3/0", "before that device is worked on"},
                       {"muster drain node-3", "before that machine is switched off"},
                       {"muster drain node-3 --undo", "afterwards"}},
          .run = Drain};
}

}  // namespace muster
