// SimAgents' part that lives and talks: processes, registration, the stream, heartbeats.
#include "tests/sim/sim_agents.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "tests/sim/sim_agent.h"
#include "tests/sim/sim_convert.h"

namespace muster {

SimAgents::SimAgents(Sim* sim, SimNetwork* network, SimTrainers* trainers)
    : sim_(sim), network_(network), trainers_(trainers) {}
SimAgents::~SimAgents() = default;

void SimAgents::Add(int num_slots) {
  auto agent = std::make_unique<Agent>();
  agent->node = size();
  agent->num_slots = num_slots;
  agent->name = absl::StrCat("n", agent->node);
  agents_.push_back(std::move(agent));
  num_workers_ += num_slots;
}

std::string SimAgents::NodeName(int node) const { return agents_[node]->name; }
std::string SimAgents::WorkerName(int node, int slot) const {
  return absl::StrCat(agents_[node]->name, "/", slot);
}
int SimAgents::num_slots(int node) const { return agents_[node]->num_slots; }
bool SimAgents::up(int node) const { return agents_[node]->up; }
StreamId SimAgents::stream(int node) const { return agents_[node]->stream; }
const std::string& SimAgents::incarnation(int node) const { return agents_[node]->incarnation; }

// ---- life

void SimAgents::Boot(int node) {
  Agent& agent = *agents_[node];
  if (agent.up) return;
  Agent fresh{.node = agent.node, .num_slots = agent.num_slots, .name = agent.name};
  fresh.life = agent.life + 1;
  fresh.up = true;
  fresh.past = std::move(agent.past);
  fresh.incarnation = absl::StrCat("incarnation-", agent.name, "-", fresh.life, "-0");
  agent = std::move(fresh);
  AgentMachine::Options options{.default_num_threads = 1};
  for (int slot = 0; slot < agent.num_slots; ++slot) {
    options.workers.push_back(WorkerName(node, slot));
  }
  options.terminate_grace = absl::Seconds(20);
  options.reports.spill_at = 64;  // the same road as for thousands, in a short time
  options.reports.spill = &agent.spill;
  agent.machine = std::make_unique<AgentMachine>(std::move(options));
  sim_->Trace(agent.name, ": life ", agent.life, " begins");
  Loop(node);
}

void SimAgents::Crash(int node) {
  Agent& agent = *agents_[node];
  if (!agent.up) return;
  ++tally_.crashes;
  sim_->Trace(agent.name, ": dies with ", agent.pids.size(), " trainers");
  for (const auto& [run, assignment] : agent.running) agent.past.push_back(assignment);
  agent.up = false;
  agent.running.clear();
  agent.pids.clear();
  trainers_->AgentDied(
      node, absl::StrCat(agent.name, "/", agent.life, "/"));  // their control sockets are gone
  network_->AgentDied(std::exchange(agent.stream, 0));
}

void SimAgents::Terminate(int node) {
  Agent& agent = *agents_[node];
  if (!agent.up) return;
  ++tally_.terminations;
  sim_->Trace(agent.name, ": SIGTERM");
  agent.terminated = true;
  Doer(this, &agent).Handle(TerminateEvent{});
}

void SimAgents::Freeze(int node, absl::Duration duration) {
  Agent& agent = *agents_[node];
  if (!agent.up) return;
  sim_->Trace(agent.name, ": stands still for ", absl::FormatDuration(duration));
  agent.frozen_until = std::max(agent.frozen_until, sim_->steady() + duration);
  sim_->At(duration, [this, node, life = agent.life] {
    Agent& later = *agents_[node];
    if (!later.up || later.life != life || later.frozen_until > sim_->steady()) return;
    for (const auto& [event, stream] : std::exchange(later.inbox, {})) {
      if (later.up && later.life == life) Doer(this, &later).Handle(event, stream);
    }
  });
}

void SimAgents::SetSpillFull(int node, bool full) { agents_[node]->spill.full = full; }

// ---- the connection, as CoordinatorClient::Run

void SimAgents::Loop(int node) {
  Agent& agent = *agents_[node];
  if (!agent.registered) return Register(node);
  agent.welcomed = false;
  agent.stream = network_->Open(node, agent.incarnation);
  sim_->Trace(agent.name, ": opens stream ", agent.stream);
  sim_->At(agent.heartbeat_interval, [this, node, stream = agent.stream] { Beat(node, stream); });
}

void SimAgents::Retry(int node) {
  Agent& agent = *agents_[node];
  // common/rpc/channel.h's Backoff with its defaults.
  const absl::Duration full = std::min(
      absl::Seconds(1), absl::Milliseconds(50) * (int64_t{1} << std::min(agent.attempt++, 20)));
  const int64_t loop = ++agent.loop;
  sim_->At(sim_->Between(full / 2, full), [this, node, life = agent.life, loop] {
    Agent& later = *agents_[node];
    if (later.up && later.life == life && later.loop == loop) Loop(node);
  });
}

void SimAgents::Register(int node) {
  Agent& agent = *agents_[node];
  RegisterAgent request{
      .incarnation = agent.incarnation, .node = agent.name, .address = agent.name, .num_cpus = 2};
  for (int slot = 0; slot < agent.num_slots; ++slot) {
    request.workers.push_back({WorkerName(node, slot), "cpu", DeviceKind::kCpu, slot});
  }
  ++tally_.registrations;
  network_->Call(
      node, std::move(request),
      [this, node, life = agent.life, incarnation = agent.incarnation](const Outcome& outcome) {
        Agent& later = *agents_[node];
        if (!later.up || later.life != life) return;
        if (later.incarnation != incarnation) return Retry(node);
        if (outcome.status.ok()) {
          later.registered = true;
          later.heartbeat_interval = std::get<RegisterReply>(outcome.reply).heartbeat_interval;
          return Loop(node);
        }
        if (absl::IsAborted(outcome.status)) {
          sim_->Trace(later.name, ": ", outcome.status.message());
          Doer(this, &later).Handle(IncarnationOverEvent{});
        } else if (absl::IsInvalidArgument(outcome.status)) {
          sim_->Wrong(absl::StrCat(later.name, ": ", outcome.status.ToString()));
        }
        Retry(node);
      });
}

void SimAgents::OnStreamLost(int node, StreamId stream, const absl::Status& status) {
  Agent& agent = *agents_[node];
  if (!agent.up || agent.stream != stream) return;
  sim_->Trace(agent.name, ": stream ", stream, " lost: ", status.message());
  agent.stream = 0;
  if (agent.welcomed) agent.attempt = 0;
  if (!absl::IsUnavailable(status)) agent.registered = false;
  Doer(this, &agent).Handle(StreamLostEvent{});
  Retry(node);
}

void SimAgents::Beat(int node, StreamId stream) {
  Agent& agent = *agents_[node];
  if (!agent.up || agent.stream != stream) return;
  if (sim_->steady() >= agent.frozen_until) {
    Heartbeat heartbeat{.stream = stream, .sequence = ++agent.beats};
    for (const SimTrainers::Progress& progress : trainers_->ProgressOn(node)) {
      heartbeat.progress.push_back({progress.job_id, progress.epoch, progress.iteration});
    }
    network_->ToCoordinator(stream, std::move(heartbeat));
  }
  sim_->At(agent.heartbeat_interval, [this, node, stream] { Beat(node, stream); });
}

void SimAgents::OnMessage(int node, StreamId stream, const AgentMessage& message) {
  Agent& agent = *agents_[node];
  if (!agent.up || agent.stream != stream) return;
  if (std::holds_alternative<WelcomeMessage>(message)) agent.welcomed = true;
  if (sim_->tracing()) sim_->Trace(agent.name, " <- ", Describe(message));
  Doer(this, &agent).Handle(ToOrder(message), stream);
}

void SimAgents::SetAlarm(int node) {
  Agent& agent = *agents_[node];
  const auto wake = agent.machine->NextWake();
  if (!wake.has_value() || *wake >= agent.alarm) return;
  agent.alarm = *wake;
  sim_->At(std::max(absl::ZeroDuration(), *wake - sim_->steady()),
           [this, node, life = agent.life, alarm = *wake] {
             Agent& later = *agents_[node];
             if (!later.up || later.life != life || later.alarm != alarm) return;
             later.alarm = absl::InfiniteDuration();
             Doer(this, &later).Handle(TickEvent{});
           });
}

// ---- the judgement

bool SimAgents::AllAcknowledged(int node) const { return agents_[node]->unacknowledged.empty(); }

std::vector<AssignmentRef> SimAgents::Running(int node) const {
  std::vector<AssignmentRef> running;
  for (const auto& [run, assignment] : agents_[node]->running) running.push_back(assignment);
  return running;
}

}  // namespace muster
