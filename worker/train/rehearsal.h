// What a spare does with its process while it waits: it trains a tiny model of the job's kind for
// two steps, by itself. The first step of a process takes several times as long as the second (code
// that comes from disk, threads that start, tables of the math libraries); a spare has that behind
// it when it takes a rank over. Some 0.1 s and a few megabytes, whatever the job's size.
#pragma once

#include <functional>

#include <c10/core/Device.h>

#include "absl/status/status.h"
#include "common/runtime/clock.h"
#include "common/spec/job_spec.h"

namespace muster {

// The job that is rehearsed: one small layer with the switches of `spec` that choose which code
// runs, on mock data, without peers, files or reports. Pure.
JobSpec RehearsalOf(const JobSpec& spec);

// `is_wanted` is asked after each step: the process has something better to do. An error says that
// nothing was rehearsed and has no other meaning.
absl::Status Rehearse(const JobSpec& spec, c10::Device device, Clock& clock,
                      const std::function<bool()>& is_wanted);

}  // namespace muster
