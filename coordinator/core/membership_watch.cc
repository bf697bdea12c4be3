// Membership's part that watches over the agents' signs of life.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "coordinator/core/membership.h"

namespace muster {

absl::Duration Membership::interval_of(const Agent& agent) const {
  return options_.heartbeat_interval * std::max(stretch_, agent.stretch);
}

// The agent beats as it was told when it registered, whatever the cluster has become since.
absl::Duration Membership::timeout_of(const Agent& agent) const {
  return options_.heartbeat_timeout * std::max(stretch_, agent.stretch);
}

// So near to the timeout that a heartbeat which is only late has come, yet before it.
absl::Duration Membership::suspect_after(const Agent& agent) const {
  const absl::Duration interval = interval_of(agent);
  return std::max(2 * interval, timeout_of(agent) - 0.4 * interval);
}

void Membership::LookAt(Agent* agent, absl::Time when) {
  if (when == agent->look_at) return;
  looks_.erase({agent->look_at, agent->order});
  agent->look_at = when;
  if (when != absl::InfiniteFuture()) looks_[{when, agent->order}] = agent;
}

std::vector<LostAgent> Membership::Tick(absl::Time now, const JobSilenceOf& job_silence) {
  const absl::Duration away = now - last_tick_;
  const bool odd = away > heartbeat_interval() || away < absl::ZeroDuration();
  stood_still_ = last_tick_ != absl::InfinitePast() && odd ? away : absl::ZeroDuration();
  last_tick_ = now;
  if (stood_still_ != absl::ZeroDuration()) Shift(stood_still_);
  std::vector<LostAgent> lost;
  while (!looks_.empty() && looks_.begin()->first.first < now) {
    Agent& agent = *looks_.begin()->second;
    const Look look = LookNow(&agent, now, job_silence);
    if (!look.lost.has_value()) {
      LookAt(&agent, std::max(look.next, now));
      continue;
    }
    const StreamId stream = agent.stream;
    Lose(&agent, *look.lost);
    lost.push_back({agent.incarnation, agent.reason, stream, AssignmentsOf(agent)});
  }
  return lost;
}

Membership::Look Membership::LookNow(Agent* agent, absl::Time now,
                                     const JobSilenceOf& job_silence) {
  const absl::Duration quiet = now - agent->last_sign;
  if (agent->state == AgentState::kJoining) {
    if (quiet <= options_.join_timeout) return {agent->last_sign + options_.join_timeout, {}};
    return {now, absl::StrCat("no sign of life for ", absl::FormatDuration(quiet),
                              ", its stream was not opened")};
  }
  const bool awaited = agent->awaited_until.has_value();
  if (awaited && now <= *agent->awaited_until) {
    const absl::Duration timeout = timeout_of(*agent);
    const absl::Time soon = agent->last_sign + timeout + options_.readoption_margin;
    if (now <= soon || !OnlyRecovers(*agent, job_silence)) {
      return {std::min(now <= soon ? soon : now + timeout, *agent->awaited_until), {}};
    }
  }
  const absl::Duration suspicious = suspect_after(*agent);
  if (quiet <= suspicious && agent->state == AgentState::kAlive) {
    return {agent->last_sign + suspicious, {}};
  }
  if (agent->state == AgentState::kAlive) {
    SetState(agent, AgentState::kSuspect,
             absl::StrCat("no heartbeat for ", absl::FormatDuration(quiet)));
  }
  const absl::Duration timeout = timeout_of(*agent);
  if (quiet <= timeout) return {agent->last_sign + timeout, {}};
  const SilenceDecision decision = Judge(*agent, now, job_silence);
  if (decision.lost) {
    return {now,
            absl::StrCat(awaited ? "it did not come back after the coordinator's restart: " : "",
                         decision.reason)};
  }
  agent->reason = decision.reason;
  return {now + timeout / 5, {}};
}

bool Membership::OnlyRecovers(const Agent& agent, const JobSilenceOf& job_silence) {
  bool any = false;
  for (const Agent::Held& job : agent.jobs) {
    const JobSilence facts = job_silence ? job_silence(job.job_id) : JobSilence{};
    if (facts.trains && !facts.recovers) return false;
    any = any || facts.recovers;
  }
  return any;
}

SilenceDecision Membership::Judge(const Agent& agent, absl::Time now,
                                  const JobSilenceOf& job_silence) const {
  Silence silence{.now = now,
                  .last_sign = agent.last_sign,
                  .timeout = timeout_of(agent),
                  .closed_at = agent.closed_at,
                  .last_progress = absl::InfinitePast(),
                  .limit = options_.silence_limit};
  for (const Agent::Held& job : agent.jobs) {
    const JobSilence facts = job_silence ? job_silence(job.job_id) : JobSilence{};
    if (!facts.trains) continue;
    silence.trains = true;
    silence.patience = std::max(silence.patience, facts.patience);
    silence.last_progress = std::max(silence.last_progress, job.activity->progress);
    // This agent itself has not been heard within its timeout.
    if (now - job.activity->heard > silence.timeout) continue;
    silence.heard_since = silence.others_heard
                              ? std::min(silence.heard_since, job.activity->heard_since)
                              : job.activity->heard_since;
    silence.others_heard = true;
  }
  return DecideSilence(silence);
}

// Everything that was heard moves with the clock.
void Membership::Shift(absl::Duration by) {
  const auto shifted = [&](absl::Time time) { return std::min(last_tick_, time + by); };
  for (auto& [incarnation, agent] : agents_) {
    if (agent.state == AgentState::kLost) continue;
    agent.last_sign = shifted(agent.last_sign);
    if (agent.closed_at.has_value()) agent.closed_at = shifted(*agent.closed_at);
    if (agent.awaited_until.has_value()) *agent.awaited_until += by;
    LookAt(&agent, agent.look_at + by);
  }
  for (auto& [job_id, activity] : activity_) {
    activity.heard = shifted(activity.heard);
    activity.heard_since = shifted(activity.heard_since);
    activity.progress = shifted(activity.progress);
  }
}

}  // namespace muster
