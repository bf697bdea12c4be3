// The events of a job that somebody who watches it must see, as lines to read. Pure.
#pragma once

#include <string>
#include <vector>

#include "google/protobuf/repeated_ptr_field.h"
#include "muster/v1/job.pb.h"

namespace muster {

// Empty: `muster events` has it, and that is enough.
std::string WatchLine(const v1::Event& event);

// Of those that came together: the newest few, and how many there were before them.
std::vector<std::string> WatchLines(const google::protobuf::RepeatedPtrField<v1::Event>& events,
                                    const std::string& job_id, size_t most = 8);

}  // namespace muster
