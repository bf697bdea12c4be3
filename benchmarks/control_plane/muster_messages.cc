#include "benchmarks/control_plane/muster_messages.h"

#include <unistd.h>

#include "absl/strings/str_format.h"
#include "nlohmann/json.hpp"

namespace muster::bench {

std::string WorkerName(int agent, int slot) { return absl::StrFormat("node-%05d/%d", agent, slot); }

v1::RegisterRequest Registration(int agent, int workers_per_agent, int64_t run) {
  v1::RegisterRequest request;
  request.set_incarnation(absl::StrFormat("%08x%08x", run & 0xffffffff, agent));  // 16 bytes
  request.set_node(absl::StrFormat("node-%05d", agent));
  request.set_version("bench");
  request.set_protocol_version(1);
  request.set_num_cpus(workers_per_agent);
  request.set_pid(getpid());
  for (int slot = 0; slot < workers_per_agent; ++slot) {
    v1::WorkerDescription* worker = request.add_workers();
    worker->set_name(WorkerName(agent, slot));
    worker->set_device("cpu");
    worker->set_kind(v1::DEVICE_KIND_CPU);
    worker->set_index(slot);
  }
  return request;
}

v1::ConnectRequest HelloOf(const v1::RegisterRequest& registration) {
  v1::ConnectRequest request;
  request.mutable_hello()->set_incarnation(registration.incarnation());
  return request;
}

v1::ConnectRequest HeartbeatOf(int64_t sequence) {
  v1::ConnectRequest request;
  request.mutable_heartbeat()->set_sequence(sequence);
  return request;
}

std::string SpecOf(int world_size) {
  const nlohmann::json spec = {
      {"name", "bench-control"},
      {"model",
       {{"num_layers", 1},
        {"hidden_size", 64},
        {"num_attention_heads", 2},
        {"seq_length", 64},
        {"vocab_size", 257},
        {"attention_dropout", 0.0},
        {"hidden_dropout", 0.0}}},
      {"data", {{"dataset_provider", "mock"}}},
      {"training", {{"micro_batch_size", 1}, {"train_iters", 1'000'000}}},
      {"optimizer", {{"lr", 0.001}}},
      {"resources", {{"world_size", world_size}, {"device", "cpu"}}},
  };
  return spec.dump();
}

}  // namespace muster::bench
