// AgentMachine's part that answers probes: what a trainer says of itself within a limit, and its
// process as seen from outside.
#include <utility>

#include "worker/core/agent_machine.h"

namespace muster {
namespace {

constexpr int kRevisionWithProbes = 2;  // of the control protocol

// It cannot answer: it has ended, or is stopped (SIGSTOP, a debugger).
bool StandsStill(const RunEvent::ProcessSeen& seen) {
  return !seen.running || seen.state == "T" || seen.state == "t";
}

}  // namespace

void AgentMachine::OnOrder(const ProbeJobOrder& order) {
  for (auto& [name, worker] : workers_) {
    if (!worker.runs() || worker.attempt.launch->job_id != order.job_id ||
        worker.attempt.launch->epoch != order.epoch) {
      continue;
    }
    worker.probe = Probe{.request = order.request};
    const bool can_be_asked =
        worker.state == State::kTraining && worker.revision >= kRevisionWithProbes;
    if (can_be_asked) {
      worker.probe->due = now_ + options_.probe_limit;
      actions_.push_back(SendToTrainerAction{
          name, worker.run, ProbeMessage{.epoch = order.epoch, .request = order.request}});
    }
    LookAtProcess(worker);  // an answer that cannot come is not waited for
  }
}

void AgentMachine::LookAtProcess(Worker& worker) {
  actions_.push_back(LookAtProcessAction{worker.name, worker.run, worker.probe->request});
}

void AgentMachine::OnProbeReply(Worker& worker, const ProbeReplyMessage& reply) {
  if (!worker.probe || worker.probe->request != reply.request) return;  // it came too late
  worker.probe->reply = reply;
  if (std::exchange(worker.probe->due, std::nullopt)) LookAtProcess(worker);
}

void AgentMachine::OnProcessSeen(Worker& worker, const RunEvent::ProcessSeen& seen) {
  if (!worker.probe || worker.probe->request != seen.request) return;
  if (worker.probe->due && !StandsStill(seen)) return;  // it may answer yet
  Report(worker, TrainerProbed{.request = seen.request,
                               .running = seen.running,
                               .process_state = seen.state,
                               .cpu_ms = seen.cpu_ms,
                               .reply = std::move(worker.probe->reply)});
  worker.probe.reset();
}

}  // namespace muster
