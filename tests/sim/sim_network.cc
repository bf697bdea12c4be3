#include "tests/sim/sim_network.h"

#include <algorithm>
#include <utility>

namespace muster {

absl::Duration SimNetwork::Delay() {
  return sim_->Chance(0.05) ? sim_->Between(absl::Milliseconds(50), absl::Milliseconds(250))
                            : sim_->Between(absl::Microseconds(100), absl::Milliseconds(10));
}

void SimNetwork::Cut(int node, absl::Duration until) {
  cuts_[node] = std::max(cuts_[node], until);
  for (auto& [stream, link] : links_) {
    if (link.node == node) link.stalls = sim_->Chance(0.6);
  }
}

void SimNetwork::Heal() { cuts_.clear(); }

bool SimNetwork::IsCut(int node) const { return cut_until(node) > sim_->steady(); }

absl::Duration SimNetwork::cut_until(int node) const {
  const auto cut = cuts_.find(node);
  return cut == cuts_.end() ? absl::ZeroDuration() : cut->second;
}

// ---- streams

StreamId SimNetwork::Open(int node, const std::string& incarnation) {
  const StreamId stream = next_stream_++;
  links_[stream] = {.node = node, .stalls = sim_->Chance(0.6)};
  ToCoordinator(stream, OpenStream{incarnation, stream});
  return stream;
}

void SimNetwork::ToCoordinator(StreamId stream, Event event) {
  const auto found = links_.find(stream);
  if (found == links_.end() || !found->second.agent_open) return;
  Link& link = found->second;
  link.last_up = std::max(sim_->steady() + Delay(), link.last_up);
  sim_->At(link.last_up - sim_->steady(), [this, stream, event = std::move(event)]() mutable {
    ArriveUp(stream, std::move(event));
  });
}

void SimNetwork::ArriveUp(StreamId stream, Event event) {
  const auto found = links_.find(stream);
  if (found == links_.end()) return;
  Link& link = found->second;
  if (IsCut(link.node)) {
    if (!link.stalls) return Break(stream, /*coordinator_learns=*/false);
    const absl::Duration rest = cut_until(link.node) - sim_->steady() + absl::Milliseconds(1);
    link.last_up = std::max(link.last_up, sim_->steady() + rest);
    sim_->At(rest, [this, stream, event = std::move(event)]() mutable {
      ArriveUp(stream, std::move(event));
    });
    return;
  }
  // What was under way on a broken stream may still arrive, or not.
  if (!link.server_open || (!link.agent_open && sim_->Chance(0.7))) return;
  const bool again = !calm_ && sim_->Chance(0.05) && !std::holds_alternative<OpenStream>(event);
  if (again) {
    ++tally_.repeated;
    link.unread.push_back(event);
  }
  link.unread.push_back(std::move(event));
  ReadNext(stream);
}

void SimNetwork::ReadNext(StreamId stream) {
  Link& link = links_.at(stream);
  while (!link.reading && link.server_open && !link.unread.empty()) {
    Event event = std::move(link.unread.front());
    link.unread.pop_front();
    if (const auto* heartbeat = std::get_if<Heartbeat>(&event)) {
      ends_.beat(*heartbeat);
      continue;
    }
    link.reading = true;
    const absl::Status posted =
        ends_.post(std::move(event), [this, stream](const Outcome& outcome) {
          const auto found = links_.find(stream);
          if (found == links_.end()) return;
          found->second.reading = false;
          if (outcome.status.ok()) return ReadNext(stream);
          ++tally_.refused;
          EndByCoordinator(stream, outcome.status);
        });
    if (!posted.ok()) EndByCoordinator(stream, posted);
  }
}

void SimNetwork::ToAgent(StreamId stream, const AgentMessage& message) {
  const auto found = links_.find(stream);
  if (found == links_.end() || !found->second.server_open) return;
  Link& link = found->second;
  if (link.queued_down >= kMaxQueued) {
    return EndByCoordinator(stream, absl::ResourceExhaustedError("it does not read"));
  }
  max_queued_ = std::max(max_queued_, ++link.queued_down);
  link.last_down = std::max(sim_->steady() + Delay(), link.last_down);
  sim_->At(link.last_down - sim_->steady(),
           [this, stream, message] { ArriveDown(stream, message); });
}

void SimNetwork::ArriveDown(StreamId stream, const AgentMessage& message) {
  const auto found = links_.find(stream);
  if (found == links_.end()) return;
  Link& link = found->second;
  if (!link.agent_open) return;
  if (IsCut(link.node)) {
    if (!link.stalls) return Break(stream, /*coordinator_learns=*/false);
    const absl::Duration rest = cut_until(link.node) - sim_->steady() + absl::Milliseconds(1);
    link.last_down = std::max(link.last_down, sim_->steady() + rest);
    sim_->At(rest, [this, stream, message] { ArriveDown(stream, message); });
    return;
  }
  --link.queued_down;
  ends_.to_agent(link.node, stream, message);
}

void SimNetwork::EndByCoordinator(StreamId stream, const absl::Status& status) {
  const auto found = links_.find(stream);
  if (found == links_.end() || !found->second.server_open) return;
  Link& link = found->second;
  LoseServerSide(stream);
  link.last_down = std::max({sim_->steady() + Delay(), link.last_down, cut_until(link.node)});
  sim_->At(link.last_down - sim_->steady(),
           [this, stream, status] { LoseAgentSide(stream, status); });
}

void SimNetwork::Break(StreamId stream, bool coordinator_learns) {
  const auto found = links_.find(stream);
  if (found == links_.end()) return;
  ++tally_.broken_streams;
  if (coordinator_learns) {
    sim_->At(Delay(), [this, stream] { LoseServerSide(stream); });
  }
  LoseAgentSide(stream, absl::UnavailableError("connection reset"));
}

void SimNetwork::AgentDied(StreamId stream) {
  const auto found = links_.find(stream);
  if (found == links_.end()) return;
  found->second.agent_open = false;
  // The kernel closes the connection; a node that went down as a whole says nothing.
  if (sim_->Chance(0.7)) sim_->At(Delay(), [this, stream] { LoseServerSide(stream); });
}

void SimNetwork::CoordinatorDied() {
  for (auto& [stream, link] : links_) {
    link.server_open = false;
    if (!link.agent_open) continue;
    const absl::Duration heard = std::max(sim_->steady() + Delay(), cut_until(link.node));
    sim_->At(heard - sim_->steady(), [this, stream = stream] {
      LoseAgentSide(stream, absl::UnavailableError("the coordinator is gone"));
    });
  }
  for (const auto& [call, reply] : std::exchange(calls_, {})) {
    sim_->At(Delay(),
             [reply = reply] { reply({.status = absl::UnavailableError("connection reset")}); });
  }
  for (const auto& [token, waiting] : std::exchange(waits_, {})) {
    sim_->At(Delay(),
             [reply = waiting.reply] { reply(absl::UnavailableError("connection reset"), {}); });
  }
}

void SimNetwork::LoseAgentSide(StreamId stream, const absl::Status& status) {
  const auto found = links_.find(stream);
  if (found == links_.end() || !found->second.agent_open) return;
  found->second.agent_open = false;
  ends_.agent_lost_stream(found->second.node, stream, status);
}

void SimNetwork::LoseServerSide(StreamId stream) {
  const auto found = links_.find(stream);
  if (found == links_.end() || !found->second.server_open) return;
  found->second.server_open = false;
  (void)ends_.post(CloseStream{stream}, nullptr);  // refused: silence says the same, later
  // Kept until nothing of it can be under way.
  sim_->At(absl::Minutes(5), [this, stream] { links_.erase(stream); });
}

// ---- calls

void SimNetwork::Call(int node, Event event, Reply reply) {
  sim_->At(Delay(), [this, node, event = std::move(event), reply = std::move(reply)] {
    const auto unreachable = [&](absl::Duration after) {
      sim_->At(after, [reply] { reply({.status = absl::UnavailableError("unreachable")}); });
    };
    if (IsCut(node)) return unreachable(absl::Seconds(1));
    const bool twice = !calm_ && sim_->Chance(0.03);
    const int64_t call = next_call_++;
    const absl::Status posted = ends_.post(
        event, [this, call, node](const Outcome& outcome) { Finish(call, node, outcome); });
    if (!posted.ok()) {
      sim_->At(Delay(), [reply, posted] { reply({.status = posted}); });
      return;
    }
    calls_[call] = reply;
    if (twice) {  // the first one's reply was given up too early
      ++tally_.repeated;
      (void)ends_.post(event, nullptr);
    }
  });
}

void SimNetwork::Finish(int64_t call, int node, const Outcome& outcome) {
  const auto found = calls_.find(call);
  if (found == calls_.end()) return;
  Outcome answer{.status = outcome.status, .reply = outcome.reply};
  if (IsCut(node) || (!calm_ && sim_->Chance(0.02))) {
    ++tally_.lost_replies;
    answer = {.status = absl::UnavailableError("the reply was lost")};
  }
  sim_->At(Delay(),
           [reply = std::move(found->second), answer = std::move(answer)] { reply(answer); });
  calls_.erase(found);
}

void SimNetwork::Wait(int node, WaitPrefix wait, WaitReply reply) {
  sim_->At(Delay(), [this, node, wait = std::move(wait), reply = std::move(reply)]() mutable {
    if (IsCut(node)) {
      sim_->At(absl::Seconds(1), [reply] { reply(absl::UnavailableError("unreachable"), {}); });
      return;
    }
    const WaitToken token = wait.token = next_call_++;
    waits_[token] = {node, reply};
    const absl::Status posted = ends_.post(std::move(wait), [this, token](const Outcome& outcome) {
      if (!outcome.status.ok()) Answer({token, outcome.status, {}});
    });
    if (!posted.ok()) Answer({token, posted, {}});
  });
}

void SimNetwork::Answer(const WaitDone& done) {
  const auto found = waits_.find(done.token);
  if (found == waits_.end()) return;
  Waiting waiting = std::move(found->second);
  waits_.erase(found);
  const bool lost = IsCut(waiting.node) || (!calm_ && sim_->Chance(0.02));
  sim_->At(Delay(), [reply = std::move(waiting.reply), done, lost] {
    if (lost) return reply(absl::UnavailableError("the reply was lost"), {});
    reply(done.status, done.entries);
  });
}

}  // namespace muster
