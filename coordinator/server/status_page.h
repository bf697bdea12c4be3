// /status: one HTML page without outside assets and without scripts; it asks for itself again every
// few seconds. Every text that comes from elsewhere is escaped. Thread-safe: a function of a value.
#pragma once

#include <string>

#include "coordinator/server/status_view.h"

namespace muster {

std::string RenderStatusPage(const StatusView& view);

}  // namespace muster
