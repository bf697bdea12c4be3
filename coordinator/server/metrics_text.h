// /metrics: the cluster's numbers in Prometheus' text format. Thread-safe: functions of values.
#pragma once

#include <string>

#include "coordinator/core/coordinator.h"

namespace muster {

// Families of membership, jobs and storage. Called on the engine's thread.
std::string RenderMetrics(const Coordinator& core);

// Of this process, by the names that Prometheus' client libraries use.
std::string RenderProcessMetrics();

}  // namespace muster
