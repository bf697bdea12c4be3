#include "worker/agent/node_description.h"

#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "common/rpc/report_convert.h"

namespace muster {

std::vector<std::string> WorkerNames(const Agent::Options& options) {
  if (options.devices.size() == 1) return {options.name};
  std::vector<std::string> names;
  for (const DeviceSlot& slot : options.devices) {
    names.push_back(absl::StrCat(options.name, "/", slot.index));
  }
  return names;
}

std::vector<std::string> DeviceNames(const Agent::Options& options) {
  std::vector<std::string> devices;
  for (const DeviceSlot& slot : options.devices) devices.push_back(slot.device);
  return devices;
}

v1::RegisterRequest Registration(const Agent::Options& options,
                                 const std::map<std::string, DeviceCheck>& checks) {
  v1::RegisterRequest request;
  request.set_node(options.name);
  const std::vector<std::string> names = WorkerNames(options);
  for (size_t i = 0; i < names.size(); ++i) {
    v1::WorkerDescription* worker = request.add_workers();
    worker->set_name(names[i]);
    worker->set_device(options.devices[i].device);
    worker->set_kind(options.devices[i].device == "cpu" ? v1::DEVICE_KIND_CPU
                                                        : v1::DEVICE_KIND_CUDA);
    worker->set_index(options.devices[i].index);
    *worker->mutable_check() = ToProto(checks.at(options.devices[i].device));
  }
  request.set_version("0.1.0");
  request.set_protocol_version(1);
  request.set_advertised_address(options.advertised_address);
  request.set_num_cpus(options.num_cpus);
  request.set_pid(getpid());
  return request;
}

std::map<std::string, WorkerCores> CoresByWorker(const Agent::Options& options) {
  std::map<std::string, WorkerCores> cores;
  const std::vector<std::string> names = WorkerNames(options);
  for (size_t i = 0; i < std::min(names.size(), options.cores.size()); ++i) {
    if (!options.cores[i].cpus.empty()) cores[names[i]] = options.cores[i];
  }
  return cores;
}

}  // namespace muster
