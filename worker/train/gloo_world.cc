#include "worker/train/gloo_world.h"

#include "absl/strings/escaping.h"
#include "common/runtime/random_bytes.h"
#include "worker/comm/node_communicator.h"

namespace muster {

std::string MakeGlooUniqueId() { return absl::BytesToHexString(RandomBytes(16)); }

absl::StatusOr<CommunicatorPtr> FormGlooWorldOf(const FormWorldOptions& options) {
  const std::string& host = options.assignment.host_address;
  return StartNodeWorld(
      {.gloo = {.name = "world",
                .rank = options.assignment.rank,
                .size = options.assignment.world_size + options.assignment.num_helpers,
                .epoch = options.assignment.epoch,
                .store = options.store,
                .host = host.empty() ? "127.0.0.1" : host,
                .form_limit = options.limit,
                .operation_limit = options.operation_limit},
       .shared_memory = options.shared_memory});
}

}  // namespace muster
