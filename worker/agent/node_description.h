// What an agent says of its node when it registers, from its options: workers, devices and their
// checks. Pure, but for the process's own number.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "common/control/device_check.h"
#include "muster/v1/membership.pb.h"
#include "worker/agent/agent.h"

namespace muster {

// One a device, in the devices' order.
std::vector<std::string> WorkerNames(const Agent::Options& options);
std::vector<std::string> DeviceNames(const Agent::Options& options);
// `checks`: of every device.
v1::RegisterRequest Registration(const Agent::Options& options,
                                 const std::map<std::string, DeviceCheck>& checks);
// Of the workers that are bound to some.
std::map<std::string, WorkerCores> CoresByWorker(const Agent::Options& options);

}  // namespace muster
